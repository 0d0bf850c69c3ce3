#!/bin/sh
# Copies the images of images.txt to a registry that nodes without the internet reach.
#
#   mirror-images.sh list KUBERNETES_VERSION [REGISTRY]          names, here or in that registry
#   mirror-images.sh save KUBERNETES_VERSION FOLDER              where there is internet: one archive an image
#   mirror-images.sh push KUBERNETES_VERSION FOLDER REGISTRY     where the registry is reached: load, name anew, push
#
# KUBERNETES_VERSION is your cluster's, as v1.34.4. Then: helm install ... --set global.imageRegistry=REGISTRY.
# TOOL=docker|podman|nerdctl|buildah (docker by default); FLAGS are added to each pull and push, as --tls-verify=false.
# An image that the tool holds already is not pulled: build ours first, none is published.
set -eu
list=$(dirname "$0")/../images.txt
TOOL=${TOOL:-docker}
FLAGS=${FLAGS:-}

usage() {
    sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

names() {
    sed -e '/^#/d' -e '/^ *$/d' -e "s/KUBERNETES_VERSION/$1/" "$list"
}

# Repository and tag without the registry: the part before the first / is one when it has a dot or a colon.
short() {
    case ${1%%/*} in
    *.* | *:*) case $1 in */*) echo "${1#*/}" ;; *) echo "$1" ;; esac ;;
    *) echo "$1" ;;
    esac
}

file() {
    echo "$1/$(short "$2" | tr '/:' '--').tar"
}

# One command for each tool; $TOOL and $FLAGS are words on purpose.
# shellcheck disable=SC2086
image() {
    verb=$1 name=$2 other=${3:-}
    case $(basename "${TOOL%% *}") in
    buildah)
        case $verb in
        has) $TOOL inspect --type=image "$name" >/dev/null 2>&1 ;;
        pull) $TOOL pull $FLAGS "$name" ;;
        save) $TOOL push $FLAGS "$name" "docker-archive:$other:$name" ;;
        load) $TOOL pull $FLAGS "docker-archive:$other" ;;
        tag) $TOOL tag "$name" "$other" ;;
        push) $TOOL push $FLAGS "$name" "docker://$name" ;;
        esac
        ;;
    *)
        case $verb in
        has) $TOOL image inspect "$name" >/dev/null 2>&1 ;;
        pull) $TOOL pull $FLAGS "$name" ;;
        save) $TOOL save -o "$other" "$name" ;;
        load) $TOOL load -i "$other" ;;
        tag) $TOOL tag "$name" "$other" ;;
        push) $TOOL push $FLAGS "$name" ;;
        esac
        ;;
    esac
}

[ $# -ge 2 ] || usage
verb=$1 version=$2
case $version in
v[0-9]*.[0-9]*.[0-9]*) ;;
*)
    echo "mirror-images.sh: KUBERNETES_VERSION is '$version': expected one as v1.34.4" >&2
    exit 2
    ;;
esac
case $verb in
list)
    for name in $(names "$version"); do
        if [ $# -ge 3 ]; then echo "${3%/}/$(short "$name")"; else echo "$name"; fi
    done
    ;;
save)
    [ $# -eq 3 ] || usage
    mkdir -p "$3"
    for name in $(names "$version"); do
        archive=$(file "$3" "$name")
        image has "$name" || image pull "$name"
        rm -f "$archive.part"
        image save "$name" "$archive.part"
        mv -f "$archive.part" "$archive"
        echo "saved $name in $archive"
    done
    ;;
push)
    [ $# -eq 4 ] || usage
    for name in $(names "$version"); do
        archive=$(file "$3" "$name")
        [ -f "$archive" ] || { echo "mirror-images.sh: $archive is missing: run save first" >&2; exit 1; }
        image load "$name" "$archive" >/dev/null
        image tag "$name" "${4%/}/$(short "$name")"
        image push "${4%/}/$(short "$name")"
        echo "pushed ${4%/}/$(short "$name")"
    done
    ;;
*) usage ;;
esac
