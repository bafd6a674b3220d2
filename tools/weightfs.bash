# SPDX-License-Identifier: Apache-2.0
# bash completion for weightfs.  Verbs and options are asked from the program itself, so that they
# are those of the version installed.

_weightfs_help() {
	command weightfs help "$@" 2>/dev/null
}

# The words of a help text that start an option line.
_weightfs_options() {
	_weightfs_help "$1" | sed -nE 's/^  (-[a-z], )?(--[a-z-]+).*/\2/p; s/^  (-[a-z]),.*/\1/p'
}

_weightfs_mounts() {
	awk '$3 == "fuse.weightfs" { gsub(/\\040/, " ", $2); print $2 }' /proc/mounts 2>/dev/null
}

_weightfs() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} verb=${COMP_WORDS[1]}
	local IFS=$'\n'

	COMPREPLY=()
	if ((COMP_CWORD == 1)) || { ((COMP_CWORD == 2)) && [[ $verb == help ]]; }; then
		COMPREPLY=($(compgen -W "$(_weightfs_help | sed -nE 's/^  ([a-z]+) .*/\1/p')" -- "$cur"))
		return
	fi
	case $prev in
	--base | --cache-dir | --output) COMPREPLY=($(compgen -d -- "$cur")); return ;;
	--log-file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
	--times) COMPREPLY=($(compgen -W $'trust\nignore' -- "$cur")); return ;;
	--log-level) COMPREPLY=($(compgen -W $'error\nwarning\ninfo\ndebug' -- "$cur")); return ;;
	--generation) COMPREPLY=($(compgen -W $'v1.0\nv1.1\nv1.2\nv1.3\nv2\nv3' -- "$cur")); return ;;
	esac
	if [[ $cur == -* ]]; then
		COMPREPLY=($(compgen -W "$(_weightfs_options "$verb")" -- "$cur"))
		return
	fi
	case $verb in
	umount | status | wait) COMPREPLY=($(compgen -W "$(_weightfs_mounts)" -- "$cur")) ;;
	inspect) COMPREPLY=($(compgen -f -- "$cur")) ;;
	*) COMPREPLY=($(compgen -d -- "$cur")) ;;
	esac
}

complete -o filenames -F _weightfs weightfs
