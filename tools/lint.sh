#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The rules of this repository that a script can hold.  Every finding is one line, "file: what";
# the exit code says whether there was any.
#
# Includes go one way only: tools, tests -> fs -> cache -> codec.  Which library is seen where, how
# long files and functions may be, what the codec may call, which functions nobody may call, and the
# format are checked below, a function for each rule.
#
# From the environment: VENV (build/venv) for clang-format, CODEC_A (build/release/codec.a), CC.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C

venv=${VENV:-build/venv}
codec_a=${CODEC_A:-build/release/codec.a}
cc=${CC:-gcc}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
found=$scratch/found
: >"$found"

folders=$(for f in codec cache fs tools tests .ci; do [ -d "$f" ] && echo "$f"; done)
# shellcheck disable=SC2086
find $folders -name __pycache__ -prune -o -type f -print | sort >"$scratch/all"
grep -E '\.[ch]$' "$scratch/all" >"$scratch/c"
grep -E '\.py$' "$scratch/all" >"$scratch/python"
grep -E '\.sh$|^\.ci/run$|^tools/mount\.fuse' "$scratch/all" >"$scratch/shell"
cat "$scratch/c" "$scratch/python" "$scratch/shell" >"$scratch/code"
mapfile -t c_files <"$scratch/c"
mapfile -t python_files <"$scratch/python"
mapfile -t shell_files <"$scratch/shell"

# note: findings come on standard input, with a text to end each line.
note() {
    sed "s|\$|$1|" >>"$found"
}

# matches PATTERN FILE...: "file:line: text" of each match, comments and strings left out.
matches() {
    local pattern=$1
    shift
    [ $# -gt 0 ] || return 0
    awk -v pattern="$pattern" '
        FNR == 1 { comment = 0 }
        {
            line = $0
            gsub(/"([^"\\]|\\.)*"/, "\"\"", line)
            gsub(/\/\*([^*]|\*[^\/])*\*\//, "", line)
            if (comment && line ~ /\*\//) { sub(/^.*\*\//, "", line); comment = 0 }
            if (comment) next
            if (line ~ /\/\*/) { sub(/\/\*.*/, "", line); comment = 1 }
            if (line ~ pattern) printf "%s:%d: %s\n", FILENAME, FNR, $0
        }' "$@"
}

# ---- layers ----

# Lines "file header" for each quoted include; for each <...> one "file <header>".
list_includes() {
    awk '/^[ \t]*#[ \t]*include[ \t]*["<]/ {
        h = $0; sub(/^[^"<]*/, "", h)
        if (h ~ /^"/) { sub(/^"/, "", h); sub(/".*/, "", h) } else sub(/>.*/, ">", h)
        print FILENAME, h
    }' "${c_files[@]}" >"$scratch/includes"
}

# codec 0, cache 1, cache/remote 2, fs 3, tools and tests 4; whoever includes must not be lower.
check_direction() {
    awk '
        function rank(path) {
            if (path ~ /^codec\//) return 0
            if (path ~ /^cache\/remote\//) return 2
            if (path ~ /^cache\//) return 1
            if (path ~ /^fs\//) return 3
            return 4
        }
        $2 !~ /^</ && rank($1) < rank($2) { print $1 ": includes " $2 ", which is above it" }
        $2 !~ /^</ && $2 ~ /^tools\// && $1 ~ /^tests\// && $1 !~ /^tests\/unit\/tools\// {
            print $1 ": tests must not need " $2 }
        $2 !~ /^</ && $2 ~ /^tests\// && $1 !~ /^tests\// { print $1 ": includes a test header" }
        $2 !~ /^</ && $2 ~ /^cache\/remote\// && $1 !~ /^(cache\/remote|tests)\// &&
            $1 != "fs/stack.c" && $1 != "tools/follow_http.c" {
                print $1 ": only fs/stack.c and tools/follow_http.c name what is in cache/remote" }
        ' "$scratch/includes" | note ""
    while read -r file header; do
        case $header in
        '<'*) ;;
        *) [ -f "$header" ] || echo "$file: include \"$header\" is not a path from the top" ;;
        esac
    done <"$scratch/includes" >>"$found"
}

# The graph of modules (x.c, x.h and a private header x_internal.h or x_private.h are one) has no
# cycle.
check_cycles() {
    awk 'function module(path) { sub(/(_internal|_private)?\.[ch]$/, "", path); return path }
    $2 !~ /^</ {
        a = module($1); b = module($2)
        if (a != b) print a, b
    }' "$scratch/includes" | sort -u >"$scratch/edges"
    # What is in no cycle goes: a module that includes nothing left, or that nothing left includes.
    awk '{ a[NR] = $1; b[NR] = $2; left[NR] = 1 }
        END {
            do {
                split("", out); split("", in_); again = 0
                for (i in left) { out[a[i]] = 1; in_[b[i]] = 1 }
                for (i in left)
                    if (!(b[i] in out) || !(a[i] in in_)) { delete left[i]; again = 1 }
            } while (again)
            for (i in left) print a[i] ": includes " b[i] ", in a circle"
        }' "$scratch/edges" | sort >>"$found"
}

# allow HEADERS FILES: the headers (a pattern) may be included by those files (a pattern) only.
allow() {
    awk -v headers="^<($1)>\$" -v files="^($2)\$" \
        '$2 ~ headers && $1 !~ files { print $1 ": must not include " $2 }' \
        "$scratch/includes" | note ""
}

check_libraries() {
    local front='fs/(ops[a-z_]*|control|reply|mount|daemon|passthrough|herald|settings)\.[ch]'
    allow 'fuse[a-z_/0-9]*\.h' "$front|tests/bench/.*"
    allow 'curl/.*' 'cache/remote/.*'
    allow 'zstd.*' 'codec/.*|tests/.*'
    allow 'uthash\.h|utlist\.h|utarray\.h' 'cache/table\.[ch]'
    allow 'jansson\.h' '(codec/scheme|fs/|tools/|tests/|cache/remote/).*|codec/read_.*'
    allow 'expat\.h|openssl/.*' 'cache/remote/.*'
    allow 'xxhash\.h' '(codec|cache|fs|tools|tests)/.*'
    allow 'pthread\.h|stdatomic\.h|sys/.*|unistd\.h|fcntl\.h|time\.h|signal\.h|poll\.h|dirent\.h' \
        '(cache|fs|tools|tests)/.*'
    # The front is included by the front, by tools that start or end a mount, and by nobody else.
    awk -v front="^$front\$" '$2 ~ front && $1 !~ front && $1 !~ /^(tools|tests)\// {
        print $1 ": the core must not include the front (" $2 ")" }' "$scratch/includes" | note ""
}

# What the codec may need from outside: memory, strings, formatting, sorting.  No I/O, no threads.
codec_may='mem(cpy|move|set|cmp|chr|rchr|mem)|str(len|nlen|cmp|ncmp|chr|rchr|dup|ndup|str|spn|cspn)'
codec_may+='|strto(ull?|d|ll?)|malloc|calloc|realloc|reallocarray|free|qsort(_r)?|bsearch'
codec_may+='|v?snprintf|(floor|ceil|ldexp|frexp|round|l?lrint)f?|__errno_location'
codec_may+='|__(assert|stack_chk)_fail|__(mem|str|v?snprintf)[a-z]*_chk|__ctype_b_loc'
codec_may+='|__isoc23_strto[a-z]*|_GLOBAL_OFFSET_TABLE_|XXH[A-Za-z0-9_]*|ZSTD_[A-Za-z0-9_]*'
codec_may+='|json_[a-z_]*|blake3_[a-z_]*'
codec_may+='|__(cpu_model|cpu_indicator_init|popcountdi2)'

check_codec() {
    if [ ! -f "$codec_a" ]; then
        echo "$codec_a: is not built (make lint builds it)" >>"$found"
        return
    fi
    nm -u "$codec_a" | awk '$1 == "U" { print $2 }' | sort -u >"$scratch/undefined"
    nm --defined-only "$codec_a" | awk 'NF == 3 { print $3 }' | sort -u >"$scratch/defined"
    comm -23 "$scratch/undefined" "$scratch/defined" | grep -vxE "$codec_may" |
        sed 's/^/codec: calls /' | note ', which the codec may not'
    size -A "$codec_a" | awk '/^[a-z_0-9]+\.o/ { object = $1 }
        $1 ~ /^\.(data|bss|tdata|tbss)$|^\.data\.rel(\.local)?$/ && $2 > 0 {
            print "codec/" object ": has variables at file scope (" $1 ")" }' >>"$found"
}

# Input is little-endian bytes at any address: outside of the kernels for one kind of CPU nobody
# looks at it through a pointer to something wider than a byte.
check_pointers() {
    local -a codec=()
    mapfile -t codec < <(grep '^codec/' "$scratch/c" | grep -vE '_(avx2|avx512)\.c$')
    local wide='u?int(16|32|64)_t|unsigned|short|int|long|size_t|float|double|__m[0-9]+i'
    matches "\\\\((const )?($wide)( (int|long))* ?\\\\*\\\\)" "${codec[@]}" |
        grep -vE '\*\(const [a-z0-9_]+ \*\)[ab]\>' | # what qsort() and bsearch() compare
        note '   <- read bytes with load_le16() and its like'
}

check_headers_alone() {
    grep '\.h$' "$scratch/c" | while read -r header; do
        case $header in
        tests/*) continue ;;
        esac
        printf '#include "%s"\n#include "%s"\n' "$header" "$header" >"$scratch/$(
            echo "$header" | tr / _).c"
    done
    # shellcheck disable=SC2046
    find "$scratch" -name '*.h.c' -print0 | xargs -0 -r -n 8 "$cc" -std=gnu11 -fsyntax-only \
        -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DFUSE_USE_VERSION=31 -I. \
        $(pkg-config --cflags fuse3) -Wall -Wextra -Werror -Wno-unused-parameter 2>&1 |
        grep -E 'error' | note '   <- each header must compile alone'
}

# ---- files and functions ----

check_lengths() {
    xargs wc -l <"$scratch/code" | awk '$2 != "total" && $1 > 600 {
        print $2 ": has " $1 " lines, more than 600" }' >>"$found"
    ctags -f - --fields=+ne --languages=C,Python --kinds-C=f --kinds-Python=fm \
        "${c_files[@]}" "${python_files[@]}" 2>/dev/null | awk -F '\t' '
        { line = end = 0
          for (i = 4; i <= NF; i++) {
              if ($i ~ /^line:/) line = substr($i, 6)
              if ($i ~ /^end:/) end = substr($i, 5)
          }
          if (end - line + 1 > 100)
              print $2 ": " $1 "() has " end - line + 1 " lines, more than 100" }' >>"$found"
}

# SPDX first, then a comment; a .c file's has at least five lines (a test's fewer).
check_openings() {
    local file
    for file in "${c_files[@]}"; do
        head -n 40 "$file" | awk -v file="$file" '
            NR == 1 && $0 != "/* SPDX-License-Identifier: Apache-2.0 */" {
                print file ": does not begin with the SPDX line" }
            NR == 2 && $0 !~ /^\/\*/ { print file ": has no opening comment"; exit }
            NR >= 2 && /\*\// { if (file ~ /\.c$/ && file !~ /^tests/ && NR < 6)
                print file ": its opening comment is too short to say what it is"; exit }'
    done >>"$found"
    for file in "${shell_files[@]}"; do
        sed -n 2p "$file" | grep -qx '# SPDX-License-Identifier: Apache-2.0' ||
            echo "$file: does not begin with the SPDX line"
    done >>"$found"
}

check_banned() {
    local banned='(^|[^A-Za-z0-9_])(strcpy|strcat|sprintf|vsprintf|strtok|gmtime|localtime|strerror'
    banned+='|rand|srand|alloca|gets|atoi|atol|mktemp|tmpnam|system|popen) *\('
    matches "$banned" "${c_files[@]}" | note '   <- banned function'
    local -a locked=()
    mapfile -t locked < <(grep -Ev '^(cache/lock\.c|tests/)' "$scratch/c")
    matches 'pthread_(mutex|rwlock|spin)_[a-z]*lock *\(' "${locked[@]}" |
        note '   <- locks are taken through cache/lock.h'
    matches '\\/\\/' "${c_files[@]}" | note '   <- comments are /* */'
    grep -nE '(^|[^A-Za-z])(TODO|FIXME)([^A-Za-z]|$)' "${c_files[@]}" "${python_files[@]}" |
        note '   <- finish it, or open an issue'
    grep -nE 'typedef +struct' "${c_files[@]}" | note '   <- no typedef for structs'
}

# Nothing that is only true on one machine.
check_paths() {
    { cat "$scratch/all" && echo Makefile README.md .clang-format .editorconfig .gitignore; } |
        xargs grep -nIE '(^|[^A-Za-z0-9_.-])/(work|root|tmp/w)/' 2>/dev/null |
        note '   <- a path of one machine'
}

check_top() {
    local allowed=' Makefile README.md LICENSE fs cache codec tools tests build '
    local entry
    for entry in *; do
        case $allowed in
        *" $entry "*) ;;
        *) echo "$entry: does not belong at the top" ;;
        esac
    done >>"$found"
}

# ---- format and languages ----

check_format() {
    local clang_format=$venv/bin/clang-format
    if [ ! -x "$clang_format" ]; then
        echo "$clang_format: is missing (make setup installs it)" >>"$found"
        return
    fi
    xargs "$clang_format" --dry-run <"$scratch/c" 2>&1 |
        sed -n 's/^\([^ :]*\):\([0-9]*\):.*warning: code should be clang-formatted.*/\1 \2/p' |
        awk '!seen[$1]++ { print $1 ":" $2 ": is not formatted (make format)" }' >>"$found"
    awk '{ line = $0
           while (match(line, /\t/))
               line = substr(line, 1, RSTART - 1) substr("        ", (RSTART - 1) % 8 + 1) \
                   substr(line, RSTART + 1)
           gsub(/[\200-\277]/, "", line) # bytes that continue a character of UTF-8
           if (length(line) > 100) print FILENAME ":" FNR ": is longer than 100" }' \
        "${shell_files[@]}" "${python_files[@]}" "${c_files[@]}" >>"$found"
    grep -nE '[[:space:]]+$' "${c_files[@]}" "${python_files[@]}" "${shell_files[@]}" Makefile |
        note '   <- blanks at the end'
}

check_shell() {
    shellcheck -f gcc "${shell_files[@]}" >>"$found" 2>&1
    # Splitting what compgen prints into COMPREPLY is how completions are written.
    [ ! -f tools/weightfs.bash ] ||
        shellcheck -f gcc -s bash -e SC2207 tools/weightfs.bash >>"$found" 2>&1
}

check_python() {
    [ ${#python_files[@]} -gt 0 ] || return 0
    python3 - "${python_files[@]}" >>"$found" <<'PYTHON'
import ast
import sys

for path in sys.argv[1:]:
    text = open(path, encoding="utf-8").read()
    try:
        tree = ast.parse(text, path)
    except SyntaxError as error:
        print(f"{path}:{error.lineno}: {error.msg}")
        continue
    if text.strip() and not ast.get_docstring(tree):
        print(f"{path}: does not begin with a docstring that says what it is")
PYTHON
}

list_includes
check_direction
check_cycles
check_libraries
check_codec
check_pointers
check_headers_alone
check_lengths
check_openings
check_banned
check_paths
check_top
check_format
check_shell
check_python

if [ -s "$found" ]; then
    cat "$found"
    echo "lint: $(wc -l <"$found") findings in $(wc -l <"$scratch/code") files"
    exit 1
fi
echo "lint: $(wc -l <"$scratch/code") files, nothing found"
