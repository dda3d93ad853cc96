# SPDX-License-Identifier: Apache-2.0
# Which Debian 12 packages each job needs; sourced by ./check and ./demo, named in README.md.
build_packages=(gcc libc6-dev meson ninja-build pkg-config python3 libuv1-dev libzmq3-dev libcjson-dev
    libsodium-dev libinih-dev libdnnl-dev)
test_packages=(clang clang-format valgrind libcmocka-dev libasan8 libubsan1 libclang-rt-14-dev redis-server systemd
    procps locales python3-yaml python3-pip python3-setuptools python3-venv python3-wheel)
