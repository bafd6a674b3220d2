/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGBUS, which is what a read of a map gets beyond the end of its file (or when the disk fails).
 *
 * The handler puts a page of zeros there, so that whoever read goes on.  What comes out is of no
 * use, and pub_fault_end() says so; the maps stay as they are until they are unmapped.
 *
 * The state is the process's, as signals are.
 */
#include "tools/pub_fault.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile sig_atomic_t seen;
static struct sigaction before;
static uintptr_t page_size;

static void on_fault(int number, siginfo_t *info, void *context)
{
	const int saved = errno;
	void *page = (void *)((uintptr_t)info->si_addr & ~(page_size - 1));

	(void)context;
	seen = 1;
	if (info->si_code != BUS_ADRERR ||
	    mmap(page, page_size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
		    MAP_FAILED)
		signal(number, SIG_DFL); /* it comes again, and ends us */
	errno = saved;
}

void pub_fault_begin(void)
{
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};

	page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
	seen = 0;
	sigaction(SIGBUS, &action, &before);
}

bool pub_fault_end(void)
{
	sigaction(SIGBUS, &before, NULL);
	return seen != 0;
}
