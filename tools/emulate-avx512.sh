#!/usr/bin/env bash
# Runs a program on an emulated processor with AVX-512 and VNNI, for development on a machine without them.
#
#   tools/emulate-avx512.sh [-a PATH]... [-e NAME=VALUE]... [-t SECONDS] PROGRAM [ARGUMENT]...
#
#   -a PATH         make this file or directory exist at the same absolute path
#   -e NAME=VALUE   set an environment variable
#   -t SECONDS      give up after this long (default 3600)
#
# Prints what the program prints (both streams) and exits with its status. The program must be statically linked.
# The tests of a crate, built so:
#
#   RUSTFLAGS='-C target-feature=+crt-static' cargo test --target x86_64-unknown-linux-gnu -p basert-kernels --lib --no-run
#   tools/emulate-avx512.sh target/x86_64-unknown-linux-gnu/debug/deps/basert_kernels-* linear
#
# How: Bochs boots Debian's kernel with the program in its initial file system. It interprets about 20 million
# instructions a second on one emulated core, so starting takes half a minute and everything runs some hundred times
# slower than natively: run chosen tests. Made for Debian 12 (Bochs 2.7, Linux 6.1); it needs
#
#   apt-get install --no-install-recommends bochs bochs-term bochsbios vgabios busybox-static isolinux syslinux-common genisoimage
#
# and fetches the kernel package once, into target/emulator.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=$root/target/emulator
isolinux=/usr/lib/ISOLINUX/isolinux.bin
loader=/usr/lib/syslinux/modules/bios/ldlinux.c32
kernel_package=linux-image-cloud-amd64

fail() {
    printf 'emulate-avx512: %s\n' "$*" >&2
    exit 125
}

added=()
variables=()
limit=3600
while getopts a:e:t: option; do
    case $option in
    a) added+=("$(realpath -- "$OPTARG")") ;;
    e) variables+=("$OPTARG") ;;
    t) limit=$OPTARG ;;
    *) fail "usage: emulate-avx512.sh [-a PATH]... [-e NAME=VALUE]... [-t SECONDS] PROGRAM [ARGUMENT]..." ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || fail "no program given"
program=$1
shift

[ -x "$program" ] || fail "$program is not an executable file"
if file --brief --dereference "$program" | grep -q 'dynamically linked'; then
    fail "$program is dynamically linked; build it with RUSTFLAGS='-C target-feature=+crt-static' and --target"
fi
for tool in bochs busybox file genisoimage gzip script strip; do
    command -v "$tool" > /dev/null || fail "$tool is missing; the head of this script says what to install"
done
for part in "$isolinux" "$loader"; do
    [ -r "$part" ] || fail "$part is missing; the head of this script says what to install"
done

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

if [ ! -s "$cache/vmlinuz" ]; then
    package=$(apt-cache depends "$kernel_package" | sed -n 's/^ *Depends: *\(linux-image-[0-9].*\)/\1/p' | head -n 1)
    [ -n "$package" ] || fail "apt does not know $kernel_package; run apt-get update"
    printf 'emulate-avx512: fetching %s\n' "$package" >&2
    mkdir -p "$cache" "$stage/package"
    (cd "$stage/package" && apt-get download -qq "$package" > /dev/null && dpkg -x ./*.deb .)
    cp "$stage"/package/boot/vmlinuz-* "$cache/vmlinuz.part"
    mv "$cache/vmlinuz.part" "$cache/vmlinuz"
fi

# A shell word that busybox's sh reads back as it was.
quote() { printf "'%s'" "${1//\'/\'\\\'\'}"; }

files=$stage/files
name=$(basename "$program")
mkdir -p "$files"/{bin,dev,proc,program,tmp}
cp "$(command -v busybox)" "$files/bin/busybox"
strip -o "$files/program/$name" "$program"
for path in ${added[@]+"${added[@]}"}; do
    mkdir -p "$files$(dirname "$path")"
    cp -a "$path" "$files$path"
done
{
    cat << 'INIT'
#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox stty -F /dev/ttyS0 -opost
exec < /dev/null > /dev/ttyS0 2>&1
INIT
    printf 'cd /tmp\necho "== begin =="\n'
    for variable in ${variables[@]+"${variables[@]}"}; do
        printf 'export %s\n' "$(quote "$variable")"
    done
    quote "/program/$name"
    for argument in "$@"; do
        printf ' %s' "$(quote "$argument")"
    done
    # The blank line keeps the marker at the start of a line; it is taken away again below.
    printf '\nprintf "\\n== exit %%d ==\\n" $?\n/bin/busybox poweroff -f\n'
} > "$files/init"
chmod +x "$files/init"

disc=$stage/disc
mkdir -p "$disc/isolinux"
cp "$isolinux" "$loader" "$disc/isolinux"
cp "$cache/vmlinuz" "$disc/vmlinuz"
(cd "$files" && busybox find . | busybox cpio -o -H newc 2> /dev/null | gzip -1) > "$disc/initrd"
# clearcpuid hides what Bochs 2.7 gets wrong from the kernel: pku (515), xsavec (321) and xsaves (323), whose save area
# has another size than CPUID says, and fsrm (580), with which the kernel hangs at start. The blacklisted call and the
# self-tests of the kernel's cryptography would take most of the start.
cat > "$disc/isolinux/isolinux.cfg" << 'BOOT'
default program
prompt 0
label program
  kernel /vmlinuz
  append initrd=/initrd console=ttyS0 loglevel=0 panic=-1 nosmp clearcpuid=515,321,323,580 mitigations=off tsc=reliable no_timer_check lpj=100000 cryptomgr.notests initcall_blacklist=load_system_certificate_list
BOOT
genisoimage -quiet -R -o "$stage/disc.iso" -b isolinux/isolinux.bin -c isolinux/boot.cat \
    -no-emul-boot -boot-load-size 4 -boot-info-table "$disc"

# A low instruction rate makes the guest's clock slow: its timers and delays then cost few instructions.
cat > "$stage/bochsrc" << BOCHS
config_interface: textconfig
display_library: term
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
cpu: model=corei7_icelake_u, count=1, ips=10000000, reset_on_triple_fault=0
memory: guest=1024, host=1024
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path="$stage/disc.iso", status=inserted
boot: cdrom
clock: sync=none
sound: waveoutdrv=dummy, waveindrv=dummy, midioutdrv=dummy
com1: enabled=1, mode=file, dev="$stage/serial"
log: $stage/log
panic: action=fatal
error: action=ignore
info: action=ignore
debug: action=ignore
BOCHS
# Debian builds Bochs with its debugger, which waits for this command.
echo c > "$stage/commands"
: > "$stage/serial"

# The display needs a terminal; `script` gives it one of its own.
TERM=vt100 timeout "$limit" script -q -c "exec bochs -q -f '$stage/bochsrc' -rc '$stage/commands'" /dev/null \
    > "$stage/screen" 2>&1 < /dev/null &
emulator=$!
trap 'kill "$emulator" 2> /dev/null || true; rm -rf "$stage"' EXIT
# Shows the lines between the markers as they come. The blank line before the last marker is the script's own.
tail --pid="$emulator" -s 0.5 -n +1 -f "$stage/serial" 2> /dev/null | {
    begun='' held='' line=''
    while IFS= read -r line; do
        case $line in
        '== begin ==') begun=1 ;;
        '== exit '*' ==') break ;;
        *)
            [ -z "$held" ] || echo
            [ -z "$begun" ] || { printf '%s' "$line" && held=1; }
            ;;
        esac
    done
    cat > /dev/null
}
wait "$emulator" || true

status=$(sed -n 's/^== exit \([0-9]*\) ==$/\1/p' "$stage/serial" | tail -n 1)
if [ -z "$status" ]; then
    cat "$stage/serial" >&2
    fail "the program did not end within $limit seconds, or the emulated machine stopped"
fi
exit "$status"
