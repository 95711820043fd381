#!/usr/bin/env bash
# Checks that relative links in Markdown files point to an existing file or directory and, after a #, to an
# existing heading. Links to other sites are not followed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Prints a Markdown file without code blocks and code spans.
prose() {
    awk '/^ *(```|~~~)/ { code = !code; next } !code { gsub(/`[^`]*`/, "x"); print }' "$1"
}

# Prints the anchors of a file's headings as GitHub generates them (of identical ones, the first).
anchors() {
    awk '/^ *(```|~~~)/ { code = !code; next } !code && /^#+ /' "$1" |
        sed -E 's/^#+ +//; s/ +$//; s/\[([^]]*)\]\([^)]*\)/\1/g' |
        tr '[:upper:]' '[:lower:]' |
        sed -E 's/[^a-z0-9 _-]//g; s/ /-/g'
}

files=0 links=0 broken=0
while IFS= read -r -d '' file; do
    files=$((files + 1))
    while IFS= read -r link; do
        case $link in
        '' | *://* | mailto:*) continue ;;
        esac
        links=$((links + 1))
        path=${link%%#*}
        target=$file
        if [ -n "$path" ]; then
            target=$(dirname "$file")/$path
        fi
        if [ ! -e "$target" ]; then
            echo "$file: the target of the link $link does not exist" >&2
            broken=$((broken + 1))
        elif [ "$link" != "$path" ] && [ -f "$target" ] &&
            ! anchors "$target" | grep -qxF -- "${link#*#}"; then
            echo "$file: the link $link: $target has no such heading" >&2
            broken=$((broken + 1))
        fi
    done < <(prose "$file" | grep -oE '\]\([^) ]*' | sed 's/^](//')
done < <(find . \( -name target -o -name .git \) -prune -o -name '*.md' -print0)

# Paths of code that these pages name: `crates/x/...`, or `x/src/...` below crates.
paths=0
for file in ARCHITECTURE.md docs/explanation/invariants.md; do
    while read -r path; do
        paths=$((paths + 1))
        if [ ! -e "$path" ] && [ ! -e "crates/$path" ]; then
            echo "$file: there is no $path" >&2
            broken=$((broken + 1))
        fi
    done < <(grep -ohE '`(crates/[a-z-]+|[a-z-]+/(src|tests|benches))[a-zA-Z0-9_/.-]*`' "$file" | tr -d '`' | sort -u)
done

echo "$paths paths of code, $links relative links in $files Markdown files, $broken broken"
[ "$broken" -eq 0 ]
