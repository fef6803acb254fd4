#!/bin/sh
# Copies neap below a prefix: sh install.sh [PREFIX]. Without one, /usr/local for root and ~/.local for others.
set -eu
unset CDPATH
# All users may read what is installed.
umask 022
from=$(cd "$(dirname "$0")" && pwd)
if [ $# -gt 0 ]; then prefix=$1
elif [ "$(id -u)" = 0 ]; then prefix=/usr/local
else prefix=$HOME/.local
fi
mkdir -p "$prefix"
prefix=$(cd "$prefix" && pwd)
# Each file is written beside its place, then renamed, so that programs that use the old library go on.
(cd "$from/files" && find . ! -type d) | while read -r file; do
    mkdir -p "$prefix/$(dirname "$file")"
    cp -P "$from/files/$file" "$prefix/$file.new"
    mv -f "$prefix/$file.new" "$prefix/$file"
done
config=lib/pkgconfig/neap.pc
{ printf 'prefix=%s\n' "$prefix"; sed '/^prefix=/d' "$from/files/$config"; } >"$prefix/$config.new"
mv -f "$prefix/$config.new" "$prefix/$config"
case $prefix in /usr|/usr/local) if [ "$(id -u)" = 0 ]; then ldconfig 2>/dev/null || true; fi ;; esac
echo "neap @VERSION@ is below $prefix. Try: $prefix/bin/neap run --summary -- ls"
