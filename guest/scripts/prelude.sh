# Put before every script that a test or the demo gives to a guest.
# shellcheck shell=dash disable=SC2034 # used by the script that follows
set -eu
# A line for the host. It begins on a line of its own even if the kernel was speaking.
say() { printf '\n@vrio: %s\n' "$*"; }
DISK=${DISK:-/dev/vda}
