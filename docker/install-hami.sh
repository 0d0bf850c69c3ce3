#!/bin/sh
# Makes a virtual environment with hami in it: install-hami.sh VENV. Run where requirements/runtime.lock and hami/ are.
#
# Only wheels with the hashes of the lock; hami itself is copied, so that no build backend is fetched.
set -eu
venv=${1:?usage: install-hami.sh VENV}
python3 -m venv "$venv"
"$venv/bin/pip" install --no-cache-dir --disable-pip-version-check --require-hashes --only-binary :all: \
    -r requirements/runtime.lock
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp -R hami "$site/hami"
rm -rf "$site/hami/shim/src" "$site/hami/shim/tests"
find "$site/numpy" -type d -name tests -prune -exec rm -rf {} +
printf '#!%s/bin/python\nfrom hami.apps.cli import main\n\nmain()\n' "$venv" >"$venv/bin/hami"
chmod 0755 "$venv/bin/hami"
"$venv/bin/python" -m compileall -q "$site/hami"
"$venv/bin/pip" uninstall --yes --quiet setuptools pip
"$venv/bin/hami" --version
