# SPDX-License-Identifier: Apache-2.0
# bash completion for weightfs.  Verbs and options are asked from the program itself, so that they
# are those of the version installed.

_weightfs_help() {
	command weightfs help "$@" 2>/dev/null
}

# The words of a help text that start an option line.
_weightfs_options() {
	_weightfs_help "$1" | sed -nE 's/^  (-[a-z], )?(--[a-z-]+).*/\2/p'
}

_weightfs_verbs() {
	_weightfs_help | sed -nE 's/^  ([a-z]+) .*/\1/p'
}

_weightfs_mounts() {
	awk '$3 == "fuse.weightfs" { gsub(/\\040/, " ", $2); print $2 }' /proc/mounts 2>/dev/null
}

# _weightfs_offer CURRENT COMPGEN-ARGUMENTS...
_weightfs_offer() {
	local current=$1
	shift
	mapfile -t COMPREPLY < <(IFS=$'\n' && compgen "$@" -- "$current")
}

_weightfs() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} verb=${COMP_WORDS[1]}

	COMPREPLY=()
	if ((COMP_CWORD == 1)) || { ((COMP_CWORD == 2)) && [[ $verb == help ]]; }; then
		_weightfs_offer "$cur" -W "$(_weightfs_verbs)"
		return
	fi
	case $prev in
	--base | --cache-dir | --output | --engine-path | --state-dir | --against | --watch) _weightfs_offer "$cur" -d ;;
	--log-file | --metrics | --ca-file | --token-file) _weightfs_offer "$cur" -f ;;
	--engine) _weightfs_offer "$cur" -W $'vllm\nsglang\nmlx' ;;
	--route) _weightfs_offer "$cur" -W $'rpc\ntransfer' ;;
	--pause-mode) _weightfs_offer "$cur" -W $'wait\nkeep\nabort\nretract\nin_place' ;;
	--on-failure) _weightfs_offer "$cur" -W $'keep-paused\nprevious\nresume' ;;
	--encoding)
		case $verb in
		simulate) _weightfs_offer "$cur" -W $'gap_delta\nraw' ;;
		*) _weightfs_offer "$cur" -W $'wfp1\nwfp1x\ntrl-v1\ntrl-v3\nxor-zstd' ;;
		esac
		;;
	--anchor-encoding) _weightfs_offer "$cur" -W $'wfp1\npacked\ntrl-v1\ntrl-v3\nxor-zstd' ;;
	--uploader) _weightfs_offer "$cur" -W $'s3\nhf' ;;
	--version-from) _weightfs_offer "$cur" -W $'name\ncount' ;;
	--format) _weightfs_offer "$cur" -W $'auto\ntrl\nweightfs\nhfdir\ncheckpoints\ngrail\nskyrl\nprime-rl\narc' ;;
	--verify) _weightfs_offer "$cur" -W $'lazy\neager\noff' ;;
	--runs) _weightfs_offer "$cur" -W $'auto\none\nseveral' ;;
	--times) _weightfs_offer "$cur" -W $'trust\nignore' ;;
	--materialize) _weightfs_offer "$cur" -W $'auto\nalways\nnever' ;;
	--inotify) _weightfs_offer "$cur" -W $'on\noff' ;;
	--log-level) _weightfs_offer "$cur" -W $'error\nwarning\ninfo\ndebug' ;;
	--generation) _weightfs_offer "$cur" -W $'v1.0\nv1.1\nv1.2\nv1.3\nv2\nv3' ;;
	*)
		case $verb:$cur in
		*:-*) _weightfs_offer "$cur" -W "$(_weightfs_options "$verb")" ;;
		umount:* | status:* | wait:* | follow:* | hold:* | release:* | pin:* | unpin:*) _weightfs_offer "$cur" -W "$(_weightfs_mounts)" ;;
		inspect:* | publish:*) _weightfs_offer "$cur" -f ;;
		*) _weightfs_offer "$cur" -d ;;
		esac
		;;
	esac
}

complete -o filenames -F _weightfs weightfs
