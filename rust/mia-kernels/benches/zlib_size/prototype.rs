//! The prototype beside the repository, where there is one, as a rival in a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::{env, fs, io};

/// An archive without members: the prototype names zlib, and no path of it that is timed calls it.
const EMPTY_ARCHIVE: &[u8] = b"!<arch>\n";

/// A program that takes part in rounds on the texts it was started with.
pub(crate) struct Rivals {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Rivals {
    pub(crate) fn start(program: &Path, texts: &[Vec<u8>]) -> io::Result<Self> {
        let file = program.with_file_name("texts");
        fs::write(&file, texts.concat())?;
        let length = texts.first().map_or(1, Vec::len).to_string();
        let mut child = Command::new(program)
            .arg(file)
            .arg(length)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (asks, answers) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self {
            child,
            asks,
            answers: BufReader::new(answers),
        })
    }

    /// Names of the paths and the nanoseconds that each took for all texts.
    pub(crate) fn round(&mut self) -> io::Result<Vec<(String, f64)>> {
        self.asks.write_all(b"\n")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        let words: Vec<_> = answer.split_whitespace().collect();
        let (pairs, _) = words.as_chunks();
        Ok(pairs
            .iter()
            .filter_map(|[name, time]| Some((format!("prototype {name}"), time.parse().ok()?)))
            .collect())
    }
}

impl Drop for Rivals {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Compiles a copy of the prototype with what runs it, and gives the program.
pub(crate) fn build() -> io::Result<PathBuf> {
    let prototype =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/prototypes/zlib-size");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("zlib-size-rivals");
    copy(&prototype, &folder)?;
    let cargo = env::var_os("CARGO").unwrap_or("cargo".into());
    let flags = format!("-C target-cpu=native -L native={}", folder.display());
    let build = Command::new(cargo)
        .args(["build", "--release", "--quiet", "--offline"])
        .args(["--bin", "k", "--target-dir", "target"])
        .current_dir(&folder)
        .env("RUSTFLAGS", flags)
        .output()?;
    if !build.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&build.stderr)));
    }
    Ok(folder.join("target/release/k"))
}

fn copy(prototype: &Path, folder: &Path) -> io::Result<()> {
    let sources = fs::read_dir(prototype.join("src"))?;
    fs::create_dir_all(folder.join("src"))?;
    for source in sources {
        let path = source?.path();
        if path.is_file() {
            let source = runnable(&fs::read_to_string(&path)?);
            let name = path.file_name().unwrap_or_default();
            fs::write(folder.join("src").join(name), source)?;
        }
    }
    let manifest = fs::read_to_string(prototype.join("Cargo.toml"))?;
    fs::write(folder.join("Cargo.toml"), manifest + "[workspace]\n")?;
    fs::copy(prototype.join("build.rs"), folder.join("build.rs"))?;
    fs::write(folder.join("libz.a"), EMPTY_ARCHIVE)?;
    fs::write(folder.join("src/main.rs"), include_str!("rivals.rs"))
}

/// The simple paths build codes with AVX-512, and the same code without it is in another file.
fn runnable(source: &str) -> String {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512vbmi2") {
        return source.into();
    }
    source.replace("crate::trees2::Cost", "crate::trees3::Cost")
}
