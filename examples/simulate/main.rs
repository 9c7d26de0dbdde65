//! stub
mod figures;
mod kubeai;
mod scenario;
mod study;
fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("figures") => figures::run().unwrap(),
        Some("kubeai") => kubeai::run(&kubeai::KubeaiArgs {
            seeds: vec![1, 2, 3],
            requests: 59031,
        })
        .unwrap(),
        _ => print!("{}", scenario::tables().unwrap_or_default()),
    }
}
