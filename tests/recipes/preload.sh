# preload.sh LIBRARY COMMANDS: runs the recipe for all programs of a system, with programs of two kinds. In a mount
# namespace of its own (unshare --mount), so that nothing on the machine changes.
set -eu
at=/usr/lib/$(uname -m)-linux-gnu
[ -e "$at/libc.so.6" ] || at=/usr/lib64
mount -t tmpfs none /mnt
for folder in /etc "$at"; do
    mkdir -p "/mnt/upper$folder" "/mnt/work$folder"
    mount -t overlay none -o "lowerdir=$folder,upperdir=/mnt/upper$folder,workdir=/mnt/work$folder" "$folder" || exit 77
done
install -m 644 "$1" "$at/libneap.so.0"
ldconfig
install -m 4755 -o nobody "$(command -v grep)" /mnt/setuid
sh -c "$2"
grep -q libneap.so.0 /proc/self/maps
/mnt/setuid -q libneap.so.0 /proc/self/maps
