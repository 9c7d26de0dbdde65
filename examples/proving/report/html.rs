//! The report as one page that needs nothing from elsewhere.

use super::compare::Comparison;
use super::distributions::distributions;
use super::figures::{Drawing, Group, overview};
use super::ink::sample;
use super::losses::{losses, notes};
use super::metric::{METRICS, Part, by_key};
use super::over_time::over_time;
use super::runs;
use super::{cells, pages};
use warmroute::sim::record::Study;

/// Figures whose best rows open the page.
const HEADLINES: [&str; 4] = ["goodput_per_s", "ttft_mean_ms", "ttft_p99_ms", "hit_rate"];
/// Most charts over time that are shown unasked.
const OPEN_CHARTS: usize = 6;

/// The whole page.
///
/// # Errors
/// A chart cannot be drawn.
pub fn render(study: &Study) -> Result<String, String> {
    let comparison = Comparison::of(study);
    let body = [
        facts(study, &comparison),
        headlines(&comparison),
        tables(&comparison),
        told(study, &comparison),
        charts(&comparison)?,
        details("every-run", "Every run", "", &runs::table(&comparison)),
        details(
            "definitions",
            "How the figures are defined",
            "",
            &definitions(study),
        ),
    ];
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n\
         <header><h1>{title}</h1></header>\n<main>\n{body}</main>\n\
         <footer>Made by warmroute {version}. The JSON report has the same figures, unrounded.</footer>\n\
         </body>\n</html>\n",
        title = escape(&study.title),
        style = include_str!("style.css"),
        body = body.concat(),
        version = env!("CARGO_PKG_VERSION"),
    ))
}

/// Text that cannot be taken for markup, in an element or in a quoted attribute. Control
/// characters, which HTML does not allow, become spaces.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if c.is_control() && c != '\n' => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

fn facts(study: &Study, comparison: &Comparison<'_>) -> String {
    let seeds: Vec<String> = comparison.seeds.iter().map(u64::to_string).collect();
    let rows = [
        ("Workload", study.workload.clone()),
        ("Fleet", study.fleet.clone()),
        ("Objective", super::table::objective(study)),
        ("Baseline", study.baseline.clone()),
        ("Seeds", seeds.join(", ")),
        (
            "Runs",
            format!(
                "{}, of {} pairs of router and policy",
                study.runs.len(),
                comparison.rows.len()
            ),
        ),
    ];
    let rows = rows
        .map(|(name, value)| format!("<div><dt>{name}</dt><dd>{}</dd></div>\n", escape(&value)));
    format!(
        "<section aria-label=\"Set-up\">\n<dl class=\"facts\">\n{}</dl>\n\
         <p class=\"label\" id=\"command\">This command makes the report again:</p>\n\
         <pre tabindex=\"0\" aria-labelledby=\"command\"><code>{}</code></pre>\n</section>\n",
        rows.concat(),
        escape(&study.command)
    )
}

fn headlines(comparison: &Comparison<'_>) -> String {
    let card = |key: &&str| {
        let metric = by_key(key)?;
        let mut best = comparison
            .rows
            .iter()
            .filter_map(|row| row.figure(key).filter(|f| f.best).map(|f| (row, f)));
        let (row, figure) = best.next()?;
        let ratio = figure.ratio.filter(|_| !row.is_baseline);
        let ratio = ratio.map(|ratio| format!("×{:.2} of the baseline", ratio.mean));
        let also = match best.count() {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        Some(format!(
            "<li><span class=\"label\">Best {}</span><strong>{}</strong><span class=\"who\">{}{also}</span>\
             <span class=\"ratio\">{}</span></li>\n",
            lower_first(&metric.name()),
            metric.show_with_unit(figure.value.mean),
            pages::name(&row.name),
            ratio.unwrap_or_default()
        ))
    };
    let cards: String = HEADLINES.iter().filter_map(card).collect();
    match cards.is_empty() {
        true => String::new(),
        false => format!(
            "<section aria-label=\"Best results\">\n<ul class=\"cards\">\n{cards}</ul>\n</section>\n"
        ),
    }
}

fn tables(comparison: &Comparison<'_>) -> String {
    let clients = pages::comparison("clients", "What clients notice", Part::Clients, comparison);
    let fleet = pages::comparison(
        "fleet",
        "What the fleet and the router do for it",
        Part::Fleet,
        comparison,
    );
    let unmeasured = match cells::unmeasured(comparison) {
        names if names.is_empty() => String::new(),
        names => format!(" Not measured in any run: {}.", names.join(", ")),
    };
    format!(
        "<section>\n<h2>Comparison</h2>\n\
         <p class=\"note\">Means over the seeds. × is the ratio to the baseline, paired by seed and averaged \
         geometrically; a..b are the smallest and the largest of any seed, of the ratio or, in the baseline's row, of \
         the figure, left out where both round alike. <b class=\"star\">★</b> marks the best of the rows without errors, unsent requests or missing \
         seeds.{unmeasured}</p>\n{clients}{fleet}</section>\n"
    )
}

fn told(study: &Study, comparison: &Comparison<'_>) -> String {
    let list = |class: &str, lines: Vec<String>| {
        let items: String = lines
            .iter()
            .map(|line| format!("<li>{}</li>\n", escape(line)))
            .collect();
        format!("<ul class=\"{class}\">\n{items}</ul>\n")
    };
    let losses = match losses(comparison) {
        lines if lines.is_empty() => {
            "<p>No run failed, and every request was sent and answered.</p>\n".to_owned()
        }
        lines => list("losses", lines),
    };
    let all: Vec<String> = study
        .notes
        .iter()
        .cloned()
        .chain(notes(comparison))
        .collect();
    let notes = match all.is_empty() {
        true => String::new(),
        false => format!("<h3>Notes</h3>\n{}", list("notes", all)),
    };
    format!("<section>\n<h2>Failures and notes</h2>\n{losses}{notes}</section>\n")
}

fn charts(comparison: &Comparison<'_>) -> Result<String, String> {
    let overview =
        grid(&overview(comparison)?).replacen("class=\"grid\"", "class=\"grid pairs\"", 1);
    let distributions = groups(distributions(comparison)?);
    let mut over_time_parts = String::new();
    for group in over_time(comparison)? {
        let open = if group.drawings.len() <= OPEN_CHARTS {
            " open"
        } else {
            ""
        };
        let about = format!("<p class=\"note\">{}</p>\n", group.about);
        over_time_parts.push_str(&details(
            &group.title.to_lowercase().replace(' ', "-"),
            group.title,
            open,
            &format!("{about}{}", grid(&group.drawings)),
        ));
    }
    let seed = comparison
        .seeds
        .first()
        .map(u64::to_string)
        .unwrap_or_default();
    Ok(format!(
        "<section>\n<h2>At a glance</h2>\n\
         <p class=\"note\">Means over the seeds, of all answers; the whisker goes from the smallest to the largest \
         seed, the hollow bar is the baseline. ⚠: something \
         is missing, see failures.</p>\n{overview}</section>\n\
         <section>\n<h2>Latency distributions</h2>\n<p class=\"note\">The share of whole answers (vertical) that were at \
         least that fast (horizontal, logarithmic). The answers of all seeds together; further left is better.</p>\n\
         {distributions}</section>\n\
         <section>\n<h2>Over time</h2>\n<p class=\"note\">One chart for each policy, with a line for each endpoint: the \
         closer the lines, the more even the load. Of the first seed ({seed}) only.</p>\n{over_time_parts}</section>\n"
    ))
}

/// Groups of one chart each are shown side by side.
fn groups(groups: Vec<Group>) -> String {
    if groups.iter().all(|group| group.drawings.len() == 1) {
        return grid(
            &groups
                .into_iter()
                .flat_map(|group| group.drawings)
                .collect::<Vec<_>>(),
        );
    }
    let part = |group: &Group| format!("<h3>{}</h3>\n{}", group.title, grid(&group.drawings));
    groups.iter().map(part).collect()
}

fn is_shared(drawings: &[Drawing]) -> bool {
    let mut legends = drawings
        .iter()
        .map(|drawing| &drawing.legend)
        .filter(|legend| !legend.is_empty());
    let first = legends.next();
    drawings.len() > 1 && legends.all(|legend| Some(legend) == first)
}

/// Charts side by side, under one legend if they all have the same.
fn grid(drawings: &[Drawing]) -> String {
    let longest = drawings.iter().max_by_key(|drawing| drawing.legend.len());
    let shared = longest.filter(|_| is_shared(drawings));
    let figure = |drawing: &Drawing| {
        let legend = if shared.is_some() {
            String::new()
        } else {
            legend(drawing)
        };
        format!(
            "<figure>\n<figcaption>{}</figcaption>\n{}\n{legend}</figure>\n",
            pages::name(&drawing.title),
            drawing.svg
        )
    };
    let figures: String = drawings.iter().map(figure).collect();
    format!(
        "{}<div class=\"grid\">\n{figures}</div>\n",
        shared.map(legend).unwrap_or_default()
    )
}

fn legend(drawing: &Drawing) -> String {
    let item = |(ink, name): &(super::ink::Ink, String)| {
        format!("<li>{}{}</li>\n", sample(*ink), pages::name(name))
    };
    match drawing.legend.is_empty() {
        true => String::new(),
        false => format!(
            "<ul class=\"legend\">\n{}</ul>\n",
            drawing.legend.iter().map(item).collect::<String>()
        ),
    }
}

fn details(id: &str, title: &str, open: &str, body: &str) -> String {
    format!("<details id=\"{id}\"{open}>\n<summary><h3>{title}</h3></summary>\n{body}</details>\n")
}

fn definitions(study: &Study) -> String {
    let item = |metric: &super::metric::Metric| {
        format!(
            "<div><dt>{}</dt><dd>{}; {}</dd></div>\n",
            metric.name(),
            metric.about,
            metric.direction()
        )
    };
    format!(
        "<dl class=\"facts\">\n{}</dl>\n<p class=\"note\">Quantiles are of the nearest rank. Latencies count from when a \
         request was due, however late it was sent. An answer is whole if it came to its \
         end without an error; it counts in goodput with {}.</p>\n",
        METRICS.iter().map(item).collect::<String>(),
        super::table::objective(study)
    )
}

/// Abbreviations stay as they are.
fn lower_first(name: &str) -> String {
    let mut letters = name.chars();
    match (letters.next(), letters.next()) {
        (Some(first), Some(second)) if second.is_lowercase() => first
            .to_lowercase()
            .chain([second])
            .chain(letters)
            .collect(),
        _ => name.to_owned(),
    }
}
