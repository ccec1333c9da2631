#!/bin/sh
# Only /tmp is writable in Lambda, and kernels are read from a folder that is.
[ -d /tmp/numba ] || cp -r /opt/numba /tmp/numba
exec /lambda-entrypoint.sh "$@"
