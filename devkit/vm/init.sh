#!/bin/sh
# Process 1 of the guest: sets up file systems and network, then runs agent.py for the host.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev 2> /dev/null
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --make-rshared /
modprobe virtio_net
ip link set lo up
ip addr add "$GUEST_ADDRESS" dev eth0
ip link set eth0 up
ip route add default via "$GUEST_GATEWAY"
python3 /opt/vm/agent.py "$GUEST_PORT"
