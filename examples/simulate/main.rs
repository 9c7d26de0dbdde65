//! stub
mod scenario;
fn main() {
    print!("{}", scenario::tables().unwrap_or_default());
}
