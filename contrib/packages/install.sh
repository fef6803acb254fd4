#!/bin/sh
# Copies neap below a prefix: sh install.sh [PREFIX]. Without one, /usr/local for root and ~/.local for others.
set -eu
from=$(cd "$(dirname "$0")" && pwd)
if [ $# -gt 0 ]; then prefix=$1
elif [ "$(id -u)" = 0 ]; then prefix=/usr/local
else prefix=$HOME/.local
fi
(cd "$from/files" && find . ! -type d) | while read -r file; do
    mkdir -p "$prefix/$(dirname "$file")"
    # Copied beside its place, then renamed, so that programs that use the old library go on.
    cp -P "$from/files/$file" "$prefix/$file.new"
    mv -f "$prefix/$file.new" "$prefix/$file"
done
sed -i "s|^prefix=.*|prefix=$prefix|" "$prefix/lib/pkgconfig/neap.pc"
case $prefix in /usr|/usr/local) if [ "$(id -u)" = 0 ]; then ldconfig 2>/dev/null || true; fi ;; esac
echo "neap @VERSION@ is below $prefix. Try: $prefix/bin/neap run --summary -- ls"
