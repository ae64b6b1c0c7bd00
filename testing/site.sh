#!/usr/bin/env bash
# site.sh: builds the docs as a site in bin/site, by Debian's mkdocs (apt-get install mkdocs). It needs no network.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v mkdocs >/dev/null || {
  echo "mkdocs is not installed: apt-get install --no-install-recommends mkdocs" >&2
  exit 1
}
rm -rf bin/site-pages bin/site
mkdir -p bin/site-pages
# What pages link to, at the same place; directories get an index by which their links lead somewhere.
cp -r README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE docs bin/site-pages/
# Code is looked at where the repository is.
code=https://github.com/heraldvip/herald/blob/main
sed -i -E "s#\]\(\.\./((testing|manifests|pkg|cmd)[^)]*)\)#](${code}/\1)#g" bin/site-pages/docs/*.md
mkdocs build --quiet --strict

# mkdocs has checked the files that are linked to; here are the headings.
dead=0
while IFS=: read -r page link; do
  to=$(dirname "$page")/${link%%#*}
  [ -n "${link%%#*}" ] || to=$page
  grep -q "id=\"${link#*#}\"" "$to" || {
    echo "${page#bin/site/} links to $link, which is not there" >&2
    dead=1
  }
done < <(grep -roE --include='*.html' 'href="[^":]*#[^"]+"' bin/site | sed -E 's/^([^:]*):href="(.*)"$/\1:\2/' | sort -u)
[ "$dead" = 0 ] || exit 1
echo "bin/site/index.html"
