# Sourced by what unpacks Debian's packages in a folder of its own: nothing is installed, and root is not needed.

# own_apt FOLDER [ARCHITECTURE]...: let apt keep its lists and archives in FOLDER, and read them from the mirror that
# it uses otherwise, for these architectures beside this machine's.
own_apt() {
    local folder=$1
    shift
    for tool in apt-get dpkg-deb; do
        command -v "$tool" >/dev/null || {
            echo "Debian's packages are unpacked here, which needs $tool; run the command on Debian." >&2
            exit 1
        }
    done
    rm -rf "$folder/apt"
    mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial"
    cat >"$folder/apt/config" <<CONFIG
Dir::State::lists "$folder/apt/lists";
Dir::Cache "$folder/apt";
APT::Sandbox::User "root";
$(printf 'APT::Architectures:: "%s";\n' "$(dpkg --print-architecture)" "$@")
CONFIG
    export APT_CONFIG=$folder/apt/config
    apt-get update -qq
}

# unpack FOLDER PACKAGE...: unpack these packages in FOLDER.
unpack() {
    local folder=$1 archives
    shift
    archives=$(mktemp -d)
    (cd "$archives" && apt-get download -qq "$@")
    for archive in "$archives"/*.deb; do
        dpkg-deb --extract "$archive" "$folder"
    done
    rm -r "$archives"
}

# depends PACKAGE NAME: the package that PACKAGE depends on whose name starts with NAME.
depends() {
    apt-cache depends "$1" | sed -n "s/.*Depends: \($2\S*\).*/\1/p" | head -n 1
}
