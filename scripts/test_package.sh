#!/usr/bin/env bash
# Unpacks a Debian package of `make package`, looks at what is in it, and runs its program from there.
#
#   scripts/test_package.sh build/package/paradyse_*.deb
set -euo pipefail
package=$(realpath "${1:?usage: scripts/test_package.sh FILE.deb}")
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

fail() {
  echo "test_package: $*" >&2
  exit 1
}

dpkg-deb -x "$package" "$root"
for file in usr/bin/paradyse usr/lib/paradyse/torch/lib/{libtorch_cpu.so,libc10.so} \
  usr/share/doc/paradyse/{copyright,THIRD_PARTY_NOTICES.md}; do
  [[ -f $root/$file ]] || fail "no /$file in the package"
done
depends=$(dpkg-deb -f "$package" Depends)
for name in libc6 libstdc++6 libfmt9 libpng16-16; do
  [[ $depends == *"$name "* ]] || fail "does not depend on $name: $depends"
done
# No folder of the machine that built it.
searched=$(readelf -d "$root/usr/bin/paradyse" | sed -n 's/.*R\(UN\)\?PATH.*\[\(.*\)\]/\2/p')
for folder in ${searched//:/ }; do
  [[ $folder == '$ORIGIN/'* ]] || fail "the program searches $folder"
done
libraries=$(ldd "$root/usr/bin/paradyse")
[[ $libraries != *"not found"* ]] || fail "libraries are missing: $libraries"
for name in libtorch_cpu libc10; do
  [[ $libraries == *"$name.so => $root/"* ]] || fail "$name is not the package's: $libraries"
done
cd "$root"
usr/bin/paradyse doctor
