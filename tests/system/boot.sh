#!/bin/sh
# Turns the namespaces that it is started in into a host of its own, whose process 1 is systemd.
#
#   boot.sh FOLDER BUS [LAYER [BASE]]
#
# FOLDER: has two folders: root, where the new root is mounted, seen by nobody outside, and host,
#         with the socket `notify` on which systemd says that it has booted.
# BUS:    dbus or dbus-broker, the unit that runs the system bus.
# LAYER:  a tree that is laid over this machine's files, such as what `make install` made.
# BASE:   another root whose files it has instead of this machine's.
#
# Nothing of what is written inside reaches this machine's disk or kernel: files go to memory, and
# the kernel's settings are read-only. Nor does its clock, which has no namespace: the first time zone
# that anybody sets after the kernel's start moves it.
set -eu
outside=$1 bus=$2 layer=${3:-} base=${4:-/}
code=$(cd "$(dirname "$0")/../.." && pwd)
umask 022

folder=$outside/root
mount -t tmpfs -o mode=755 op-dbus-tests "$folder"
mkdir "$folder/upper" "$folder/work" "$folder/root" "$folder/none" "$folder/layer"
lower=$base
if [ -n "$layer" ]; then
    # overlayfs refuses a layer inside another layer, but not an overlay of it
    mount -t overlay -o "ro,lowerdir=$layer:$folder/none" overlay "$folder/layer"
    lower=$folder/layer:$base
fi
root=$folder/root
mount -t overlay -o "lowerdir=$lower,upperdir=$folder/upper,workdir=$folder/work" overlay "$root"

mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$root/sys"
mount -t tmpfs -o mode=755,nosuid,nodev tmpfs "$root/run"
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$root/tmp"
mkdir "$root/run/host"
mount --bind "$outside/host" "$root/run/host"
# observers of the tests' own run inside; at its own path it may lie below /tmp, which is empty here
mkdir -p "$root/mnt/code"
mount --bind "$code" "$root/mnt/code"
mount -o remount,bind,ro "$root/mnt/code"

mount -t tmpfs -o mode=755,nosuid tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"

groups=$root/sys/fs/cgroup
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 "$groups"
else
    # as here: what enforces limits with systemd 252 is the older hierarchy of each controller
    mount -t tmpfs -o mode=755 tmpfs "$groups"
    for controller in cpu cpuacct memory devices pids blkio freezer; do
        [ -d "/sys/fs/cgroup/$controller" ] || continue
        mkdir "$groups/$controller"
        mount -t cgroup -o "$controller" cgroup "$groups/$controller"
    done
    mkdir "$groups/systemd" "$groups/unified"
    mount -t cgroup -o none,name=systemd cgroup "$groups/systemd"
    mount -t cgroup2 cgroup2 "$groups/unified"
fi

etc=$root/etc/systemd
for unit in systemd-sysctl systemd-modules-load modprobe@ systemd-binfmt systemd-udevd \
    systemd-udev-trigger systemd-timesyncd systemd-remount-fs systemd-random-seed \
    systemd-networkd getty@ getty-static console-getty; do
    ln -sf /dev/null "$etc/system/$unit.service"
done
for unit in systemd-journald-audit.socket systemd-udevd-control.socket systemd-udevd-kernel.socket \
    dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount \
    sys-kernel-config.mount sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount \
    timers.target getty.target; do
    ln -sf /dev/null "$etc/system/$unit"
done
rm -f "$etc/system/dbus.service"
[ "$bus" = dbus ] || ln -s "/lib/systemd/system/$bus.service" "$etc/system/dbus.service"

mkdir -p "$etc/journald.conf.d" "$etc/system.conf.d"
printf '[Journal]\nStorage=volatile\nAudit=no\nReadKMsg=no\nRateLimitBurst=0\n' \
    >"$etc/journald.conf.d/tests.conf"
# a unit that hangs is a failure to see; one that a busy machine starts late is none
printf '[Manager]\nDefaultTimeoutStartSec=60\nDefaultTimeoutStopSec=30\nLogTarget=journal\n' \
    >"$etc/system.conf.d/tests.conf"
printf '[Unit]\nRequires=basic.target\nWants=dbus.service\nAfter=basic.target dbus.service\n' \
    >"$etc/system/op-dbus-tests.target"
systemd-id128 new >"$root/etc/machine-id"
: >"$root/etc/fstab"
echo op-dbus-tests >"$root/etc/hostname"

mkdir -p "$root/mnt/outside"
cd "$root"
pivot_root . mnt/outside
umount -l mnt/outside
mount --make-rshared /
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin container=op-dbus-tests \
    NOTIFY_SOCKET=/run/host/notify \
    setpriv --bounding-set=-sys_time \
    /lib/systemd/systemd --system --unit=op-dbus-tests.target
