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

echo "$links relative links in $files Markdown files, $broken broken"
[ "$broken" -eq 0 ]
