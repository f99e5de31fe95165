# A minimal Debian in a folder of its own, for tests that need a machine on which nothing is
# installed. Sourced by tests/fresh and tests/packages.
#
# It takes the Debian release, the mirrors, pip's settings and the certificates of this machine.
# Needs root, and mmdebstrap, which it installs. The folder is a temporary one and is removed at the end.

fail() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

need_root() {
    [ "$(id -u)" = 0 ] || fail "a Debian of its own takes root: run it with sudo"
}

need_packages_for_debian() {
    command -v "$1" >/dev/null && return
    command -v apt-get >/dev/null || fail "$1 is missing, and apt-get to install it"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" >/dev/null
}

release="$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")"
scratch="$(mktemp -d)"
trap remove_debians EXIT

remove_debians() {
    local place
    # The deepest first.
    for place in $(awk -v under="$scratch/" 'index($2, under) == 1 { print $2 }' /proc/mounts | sort -r); do
        umount -R -l "$place" 2>/dev/null || true
    done
    rm -rf --one-file-system "$scratch"
}

# bootstrap TARGET [option of mmdebstrap …]: a folder, or a tar where the name ends so.
bootstrap() {
    local target="$1" file options=()
    shift
    local sources=(/etc/apt/sources.list.d/*.sources)
    [ -e "${sources[0]}" ] || sources=(/etc/apt/sources.list)
    [ -e "${sources[0]}" ] || fail "this machine has no list of Debian's mirrors"
    # The settings of this machine's apt that lead to its mirrors.
    for file in /etc/apt/apt.conf.d/*; do
        grep -qsiE 'Acquire|proxy' "$file" && options+=(--aptopt="$file")
    done
    mmdebstrap --quiet --variant=minbase "${options[@]}" "$@" "$release" "$target" "${sources[@]}"
}

# Lets a Debian reach the network as this machine does, and see processes and devices.
furnish() {
    local root="$1" file
    for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
        [ ! -e "$file" ] || install -D -m 644 "$file" "$root$file"
    done
    mkdir -p "$root/proc" "$root/dev"
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --make-rslave "$root/dev"
}

# inside ROOT COMMAND: runs it there, with nothing of this environment but what $PATH needs.
inside() {
    chroot "$1" env -i HOME=/root LANG=C.UTF-8 TERM=dumb \
        PATH=/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        bash -euo pipefail -c "$2" </dev/null
}
