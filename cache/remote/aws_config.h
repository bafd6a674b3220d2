/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two files of AWS tools, ~/.aws/credentials and ~/.aws/config, and the environment around
 * them.
 *
 * AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE name other files; a missing file is an empty one.
 * What is loaded does not change; load again for news.
 */
#ifndef CACHE_REMOTE_AWS_CONFIG_H
#define CACHE_REMOTE_AWS_CONFIG_H

#include "codec/base.h"

struct aws_config; /* opaque; secrets in it are wiped when it is freed */

/* profile: NULL: AWS_PROFILE, else "default".  -EACCES and others with a sentence that names the
 * file. Blocks on the disk. */
int aws_config_load(const char *profile, struct aws_config **out, struct why *why) MUST_CHECK;
void aws_config_free(struct aws_config *c); /* NULL is fine */

const char *aws_config_profile(const struct aws_config *c); /* its name */
bool aws_config_has_profile(const struct aws_config *c);
/* A setting of the profile: that of the credentials file, else that of config; NULL: not set. One
 * below another is "s3.addressing_style".  Keys in lower case. */
const char *aws_config_get(const struct aws_config *c, const char *key);
/* endpoint_url for a service ("s3", "sts") by the documented order: AWS_ENDPOINT_URL_<SERVICE>,
 * AWS_ENDPOINT_URL, the profile's `services` section, its endpoint_url; none of them with
 * AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=true.  NULL: none. */
const char *aws_config_endpoint(const struct aws_config *c, const char *service);
/* AWS_REGION, AWS_DEFAULT_REGION, the profile's region; NULL: none. */
const char *aws_config_region(const struct aws_config *c);
/* The file of authorities that AWS's tools would trust: AWS_CA_BUNDLE, the profile's ca_bundle;
 * malloc'ed, NULL: none.  *out_from: which of them. */
char *aws_ca_bundle(const char *profile, const char **out_from);
/* An environment variable, NULL when it is empty, too. */
const char *aws_env(const char *name);
bool aws_env_true(const char *name);

#endif
