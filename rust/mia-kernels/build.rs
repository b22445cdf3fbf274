//! Refuses to build against any zlib but the one that `libz-sys` carries.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=DEP_Z_ROOT");
    // libz-sys names its root only where it compiled the zlib in its own package.
    if std::env::var_os("DEP_Z_ROOT").is_none() {
        println!(
            "cargo::error=zlib must be the bundled one; unset LIBZ_SYS_STATIC and build again"
        );
    }
}
