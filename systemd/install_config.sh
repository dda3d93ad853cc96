#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# install_config.sh FILE DIR: puts FILE into DIR, below DESTDIR if that is set, unless one is there.
set -eu
name=$(basename "$1")
dir=${DESTDIR:-}$2
if [ -e "$dir/$name" ]; then
    echo "$dir/$name is there already and stays"
    exit 0
fi
mkdir -p "$dir"
install -m 644 "$1" "$dir/$name"
