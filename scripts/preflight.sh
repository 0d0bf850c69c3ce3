#!/usr/bin/env bash
# Checks what a fresh machine must have before anything is set up, and says what to install.
set -u
python=${1:-python3}
problems=()
command -v git >/dev/null 2>&1 || problems+=("git is missing: install it (Debian: apt-get install git)")
command -v make >/dev/null 2>&1 || problems+=("make is missing: install it (Debian: apt-get install make)")
if ! command -v "$python" >/dev/null 2>&1; then
  problems+=("$python is missing: install Python 3.11 or newer (Debian: apt-get install python3 python3-venv)")
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  problems+=("$python is $("$python" -V 2>&1), 3.11 or newer is needed: install it and run make PYTHON=python3.11")
elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
  problems+=("$python has no venv: install it (Debian: apt-get install python3-venv)")
fi
cache=${HAMI_CACHE:-${HOME:-}/.cache/hami}
for folder in . "$cache"; do
  while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
  free_mib=$(df -Pm "$folder" | awk 'NR == 2 {print $4}')
  [ "${free_mib:-0}" -ge 1500 ] || problems+=("only $free_mib MiB free where $folder lies, 1500 are needed: free some or set HAMI_CACHE")
done
if [ ${#problems[@]} -gt 0 ]; then
  printf 'setup cannot start:\n' >&2
  printf '  - %s\n' "${problems[@]}" >&2
  exit 1
fi
