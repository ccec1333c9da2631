#!/bin/sh
# Install the emulator into a folder, unless this version of it is there.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$1
if [ -f "$folder/.ready" ] && cmp -s "$here/package-lock.json" "$folder/package-lock.json"; then
    exit 0
fi
mkdir -p "$folder"
rm -f "$folder/.ready"
cp "$here/package.json" "$here/package-lock.json" "$folder"
cd "$folder"
# Nothing that is installed needs a script of its own.
npm ci --loglevel=error --no-audit --no-fund --ignore-scripts >install.log 2>&1 || {
    cat install.log >&2
    exit 1
}
touch .ready
