#!/bin/sh
# The guest's first process. Its argument is the folder that host and guest share: the command to
# run is there, and its output and exit status go there.
shared=$1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t devtmpfs devtmpfs /dev
mkdir /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
ln -s /proc/self/fd /dev/fd
for folder in /run /tmp /var/lib /var/log /var/tmp; do
    mount -t tmpfs tmpfs "$folder"
done
export HOME=/run LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mkdir -p "$shared"
mount -t hostfs -o "$shared" shared "$shared"
sh "$shared/command" >"$shared/output" 2>&1
echo $? >"$shared/status"
busybox poweroff -f
