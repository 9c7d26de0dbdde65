//! The report in a real browser.
#[path = "../examples/proving/report/mod.rs"]
mod report;
#[path = "browser/study.rs"]
mod study;

#[test]
fn write() {
    for (n, s) in [
        (
            "three",
            study::sound(&study::Size {
                policies: 3,
                seeds: 3,
                requests: 2000,
                endpoints: 4,
            }),
        ),
        (
            "twenty",
            study::troubled(&study::Size {
                policies: 20,
                seeds: 3,
                requests: 2000,
                endpoints: 8,
            }),
        ),
    ] {
        let a = report::ReportArgs {
            html: Some(format!("/tmp/npm/{n}.html").into()),
            json: Some(format!("/tmp/npm/{n}.json").into()),
        };
        a.write(&s).unwrap();
    }
}
