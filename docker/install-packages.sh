#!/bin/sh
# Makes a virtual environment that runs hami: install-packages.sh VENV. Run where requirements/runtime.lock is.
#
# Only wheels with the hashes of the lock. hami itself comes as a layer of its own, VENV/app: an upgrade then brings
# few megabytes, and no build backend is fetched.
set -eu
venv=${1:?usage: install-packages.sh VENV}
python3 -m venv "$venv"
"$venv/bin/pip" install --no-cache-dir --disable-pip-version-check --require-hashes --only-binary :all: \
    -r requirements/runtime.lock
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$venv/bin/pip" uninstall --yes --quiet setuptools pip
echo "$venv/app" >"$site/hami.pth"
printf '#!%s/bin/python\nfrom hami.apps.cli import main\n\nmain()\n' "$venv" >"$venv/bin/hami"
chmod 0755 "$venv/bin/hami"
find "$site" -type d \( -name tests -o -name test \) -prune -exec rm -rf {} +
# The official client's generated API and models, 120 MB, are never imported: only its configuration modules are.
find "$site/kubernetes" -type f \( -path '*/client/models/*' -o -path '*/client/api/*' \) ! -name '__init__*' -delete
