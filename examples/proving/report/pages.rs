//! The comparison as tables of the page.

use super::cells::{Cell, NO_DATA, columns, counts};
use super::compare::{Comparison, Figure, Row};
use super::html::escape;
use super::metric::{Metric, Part};

/// One table, which scrolls by itself where it is wider than the page.
pub fn comparison(id: &str, title: &str, part: Part, comparison: &Comparison<'_>) -> String {
    let columns = columns(part, comparison);
    let counted = part == Part::Clients;
    let rows: String = comparison
        .rows
        .iter()
        .map(|row| self::row(row, counted, &columns))
        .collect();
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"{id}\">\n<table>\n\
         <caption id=\"{id}\"><span>{title}</span></caption>\n<thead>\n{}</thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n",
        head(counted, &columns)
    )
}

/// A name that may break after slashes and underscores; escaped.
pub fn name(name: &str) -> String {
    escape(name).replace(['/'], "/<wbr>").replace('_', "_<wbr>")
}

/// Two lines: what neighbours have in common, and the rest with the unit.
fn head(counted: bool, columns: &[(usize, &Metric)]) -> String {
    let mut groups = String::new();
    for group in columns.chunk_by(|(_, one), (_, other)| one.group == other.group) {
        let title = group
            .first()
            .map(|(_, metric)| metric.group)
            .unwrap_or_default();
        groups.push_str(&format!(
            "<th colspan=\"{}\" scope=\"colgroup\">{title}</th>",
            group.len()
        ));
    }
    if counted {
        groups.push_str("<th colspan=\"4\" scope=\"colgroup\">Counts</th>");
    }
    let counts = ["runs", "requests", "errors", "unsent"]
        .map(|name| format!("<th scope=\"col\">{name}</th>"));
    let counts = if counted {
        counts.concat()
    } else {
        String::new()
    };
    let labels: String = columns.iter().map(|(_, metric)| label(metric)).collect();
    format!(
        "<tr><th rowspan=\"2\" scope=\"col\">Router and policy</th>{groups}</tr>\n<tr>{labels}{counts}</tr>\n"
    )
}

fn label(metric: &Metric) -> String {
    let unit = match metric.unit {
        "" => String::new(),
        unit => format!("<span class=\"unit\">{unit}</span>"),
    };
    format!("<th scope=\"col\">{} {unit}</th>", metric.label)
}

fn row(row: &Row<'_>, counted: bool, columns: &[(usize, &Metric)]) -> String {
    let class = if row.is_baseline {
        " class=\"baseline\""
    } else {
        ""
    };
    let baseline = if row.is_baseline {
        " <small>baseline</small>"
    } else {
        ""
    };
    let incomplete = match row.is_whole {
        true => "",
        false => " <small class=\"bad\">⚠ see failures</small>",
    };
    let count = |(what, text): &(&'static str, String)| {
        let bad = match *what {
            "runs" => row.failed() > 0,
            "requests" => false,
            _ => text != "0",
        };
        let class = if bad { " class=\"bad\"" } else { "" };
        let mark = if bad {
            "<span aria-hidden=\"true\">⚠ </span>"
        } else {
            ""
        };
        format!("<td data-count=\"{what}\"{class}>{mark}{text}</td>")
    };
    let counts: String = counts(row).iter().filter(|_| counted).map(count).collect();
    let cells: String = columns
        .iter()
        .map(|(position, metric)| {
            cell(
                metric,
                row.figures.get(*position).and_then(Option::as_ref),
                row,
            )
        })
        .collect();
    format!(
        "<tr{class} data-row=\"{}\"><th scope=\"row\">{}{baseline}{incomplete}</th>{cells}{counts}</tr>\n",
        escape(&row.name),
        name(&row.name)
    )
}

fn cell(metric: &Metric, figure: Option<&Figure>, row: &Row<'_>) -> String {
    let key = metric.key;
    let Some(figure) = figure else {
        return format!("<td data-key=\"{key}\" class=\"none\">{NO_DATA}</td>");
    };
    let cell = Cell::of(metric, figure, row);
    let (class, star) = match figure.best {
        true => (
            " class=\"best\"",
            "<b class=\"star\" role=\"img\" aria-label=\"best\">★</b> ",
        ),
        false => ("", ""),
    };
    let ratio = cell
        .ratio
        .map(|text| format!("<span class=\"ratio\">{text}</span>"))
        .unwrap_or_default();
    let spread = cell
        .spread
        .map(|text| format!("<span class=\"spread\">{text}</span>"))
        .unwrap_or_default();
    format!(
        "<td data-key=\"{key}\"{class}>{star}<data value=\"{}\">{}</data>{ratio}{spread}</td>",
        figure.value.mean, cell.value
    )
}
