# Boots the system in the folder `$1` as a machine of its own: in the caller's namespaces, with systemd as its first
# process. Files that are written there lie in memory. The other arguments are files, which are copied to `/context`.
set -e
lower=$1
shift
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o "lowerdir=$lower,upperdir=/mnt/upper,workdir=/mnt/work" overlay /mnt/root
mkdir /mnt/root/context
cp "$@" /mnt/root/context
cd /mnt/root
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
for folder in dev run tmp; do mount -t tmpfs tmpfs $folder; done
mkdir dev/pts dev/shm
for device in null zero full random urandom tty; do
    : >dev/$device
    mount --bind /dev/$device dev/$device
done
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
# Not chroot: services with users of their own (PrivateUsers) are refused there.
pivot_root . mnt
umount -l mnt
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --log-target=console --show-status=0
