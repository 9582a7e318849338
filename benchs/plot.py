#!/usr/bin/env python3
"""Figures and tables of what `flashgmm bench` measured, from its rows alone.

    plot.py ROWS.jsonl... [--figures DIR] [--tables FILE.md...]

--figures writes recall.svg, an overview, and one figure for each set and number
of lists, as SVG and PNG; needs matplotlib. --tables replaces, in Markdown files,
what is between <!-- table: NAME --> and <!-- end -->, NAME being a function
below that begins with table_. Without either, prints all tables.
"""

import argparse
import json
import math
import pathlib
import re
import statistics
from collections import defaultdict

SCANS = "scans"
REFERENCE = ("k-means", "single")

# What figures show, in the palette of Okabe and Ito: distinct for every common
# colour blindness, and by markers without colour.
SHOWN = {
    ("k-means", "single"): ("k-means, one list", "#000000", "o", "-"),
    ("paper", "posterior"): ("mixture, tau = 1/K (the paper)", "#0072B2", "s", "--"),
    ("k-means", "soar,1.5"): ("soar, 1.5 entries", "#009E73", "^", "-."),
    ("k-means", "demand,1.5"): ("demand, 1.5 entries", "#D55E00", "D", "-"),
    ("hnswlib", None): ("hnswlib", "#999999", "v", ":"),
}


def read_rows(paths):
    rows = []
    for path in paths:
        with open(path) as file:
            rows += [json.loads(line) for line in file if line.strip()]
    return [row for row in rows if row.get("bench") == "ivf"]


def method(row):
    policy = None if row["centroids"] == "hnswlib" else row["policy"]
    return row["centroids"], policy


def cases(rows):
    """(set, lists) in the order of the rows; graphs have no lists."""
    return list(dict.fromkeys(
        (row["dataset"], row["nlist"]) for row in rows if row["nlist"]))


def of_case(rows, case, codec=None):
    return [row for row in rows
            if (row["dataset"], row["nlist"]) == case
            and (codec is None or row["codec"] == codec)]


def by_method(rows):
    """Rows of each method, centroids by centroids, one list a vector first."""
    order = {name: i for i, name in enumerate(
        dict.fromkeys(row["centroids"] for row in rows))}
    groups = defaultdict(list)
    for row in sorted(rows, key=lambda row: (
            order[row["centroids"]], row["policy"] != "single",
            row["policy"].split(",")[0], len(row["policy"]), row["policy"])):
        groups[method(row)].append(row)
    return groups


def mean(values):
    values = [value for value in values if value is not None]
    return statistics.fmean(values) if values else None


def mean_curve(rows, field):
    return [mean(column) for column in zip(*(row[field] for row in rows))]


def at_recall(row, wanted, field, recall="recall_10"):
    """The value of a field where the recall is reached: between two points on
    a logarithmic scale. None: it is not reached."""
    curve, values = row[recall], row[field]
    for i, found in enumerate(curve):
        if found >= wanted:
            if i == 0:
                return values[0]
            part = (wanted - curve[i - 1]) / (found - curve[i - 1])
            return math.exp((1 - part) * math.log(values[i - 1])
                            + part * math.log(values[i]))
    return None


def number(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


def spread(values, digits=2):
    """Mean, and the extremes if there are several."""
    values = [value for value in values if value is not None]
    if not values:
        return "-"
    text = number(statistics.fmean(values), digits)
    if len(values) > 1:
        text += f" ({min(values):.{digits}f} to {max(values):.{digits}f})"
    return text


def table(head, lines):
    return "\n".join(["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
                     + ["| " + " | ".join(line) + " |" for line in lines])


def title(rows, case):
    row = of_case(rows, case)[0]
    place = f" (in the place of {row['stands_for']})" if row["stands_for"] else ""
    return f"{case[0]}{place}, {row['n']:,} x {row['d']}, K = {case[1]}:"


def table_gains(rows):
    """Scans of k-means with one list / scans of each method, equal recall@10."""
    parts = []
    for case in cases(rows):
        lines = []
        for (centroids, policy), group in by_method(of_case(rows, case, SCANS)).items():
            lines.append([
                centroids, policy, str(len(group)),
                number(mean(row["entries_per_vector"] for row in group)),
                *(number(mean(row[f"scan_gain_r{r}"] for row in group))
                  for r in (80, 90)),
                spread([row["scan_gain_r95"] for row in group]),
                number(mean(row["scan_gain_r99"] for row in group)),
                number(mean(row["nprobe_r95"] for row in group), 1),
                number(mean(row["imbalance"] for row in group)),
            ])
        if lines:
            parts += [title(rows, case), table(
                ["centroids", "policy", "seeds", "entries a vector", "R80", "R90",
                 "R95", "R99", "nprobe R95", "imbalance"], lines)]
    return "\n\n".join(parts)


def table_targets(rows):
    """The paper's rule beside the best with at most 1.5 entries, at R95."""
    lines = []
    for case in cases(rows):
        groups = by_method(of_case(rows, case, SCANS))
        def gain(group):
            return mean(row["scan_gain_r95"] for row in group) or 0
        within = [key for key, group in groups.items()
                  if mean(row["entries_per_vector"] for row in group) <= 1.501]
        if not within:
            continue
        best = max(within, key=lambda key: gain(groups[key]))
        for name, key in [("the paper", ("paper", "posterior")),
                          ("soar", ("k-means", "soar,1.5")),
                          ("demand", ("k-means", "demand,1.5")),
                          ("best of all", best)]:
            group = groups.get(key)
            if group:
                lines.append([
                    case[0], str(case[1]), name, f"{key[0]}: {key[1]}",
                    number(mean(row["entries_per_vector"] for row in group)),
                    spread([row["scan_gain_r95"] for row in group]),
                    number(mean(row["nprobe_r95"] for row in group), 1)])
    return table(["set", "K", "", "method", "entries a vector",
                  "gain at R95", "nprobe"], lines)


def table_models(rows):
    """Gains of centroids with one list a vector, and with tau = 1/K."""
    lines = []
    for case in cases(rows):
        groups = by_method(of_case(rows, case, SCANS))
        for centroids in dict.fromkeys(key[0] for key in groups):
            line = [case[0], str(case[1]), centroids]
            for policy in ("single", "posterior"):
                group = groups.get((centroids, policy))
                line.append("-" if not group else " / ".join(
                    number(mean(row[f"scan_gain_r{r}"] for row in group))
                    for r in (80, 90, 95, 99)))
                line.append("-" if not group else number(
                    mean(row["entries_per_vector"] for row in group)))
            lines.append(line[:4] + line[5:])
    return table(["set", "K", "centroids", "one list: R80 / R90 / R95 / R99",
                  "tau = 1/K: R80 / R90 / R95 / R99", "entries a vector"], lines)


def table_nprobe(rows):
    """Recalls at equal nprobe."""
    probes = (1, 8, 32)
    lines = []
    for case in cases(rows):
        groups = by_method(of_case(rows, case, SCANS))
        for key in SHOWN:
            group = groups.get(key)
            if not group:
                continue
            line = [case[0], str(case[1]), f"{key[0]}: {key[1]}"]
            for nprobe in probes:
                i = group[0]["nprobe"].index(nprobe)
                line.append(" / ".join(
                    number(mean(row[f"recall_{k}"][i] for row in group), 3)
                    for k in (1, 10, 100) if f"recall_{k}" in group[0]))
            lines.append(line)
    return table(["set", "K", "method"]
                 + [f"nprobe {nprobe}: R@1 / @10 / @100" for nprobe in probes], lines)


def table_seeds(rows):
    """Largest less smallest recall@10 of the seeds at fixed nprobe."""
    probes = (4, 8, 16, 32)
    lines = []
    for case in cases(rows):
        for key, group in by_method(of_case(rows, case, SCANS)).items():
            if key not in SHOWN or len(group) < 2:
                continue
            line = [case[0], str(case[1]), f"{key[0]}: {key[1]}", str(len(group))]
            for nprobe in probes:
                i = group[0]["nprobe"].index(nprobe)
                found = [row["recall_10"][i] for row in group]
                line.append(f"{max(found) - min(found):.4f}")
            lines.append(line)
    return table(["set", "K", "method", "seeds"]
                 + [f"nprobe {nprobe}" for nprobe in probes], lines)


def table_scanned(rows):
    """Entries and distinct vectors scanned for recall@10 = 0.95."""
    lines = []
    for case in cases(rows):
        for key, group in by_method(of_case(rows, case, SCANS)).items():
            if key not in SHOWN:
                continue
            values = [mean(at_recall(row, 0.95, field) for row in group)
                      for field in ("nprobe", "scanned", "distinct")]
            lines.append([
                case[0], str(case[1]), f"{key[0]}: {key[1]}", number(values[0], 1),
                number(values[1], 0), number(values[2], 0),
                number(1 - values[2] / values[1] if values[1] else None),
                number(mean(row["bytes"] for row in group) / 1e6, 0)])
    return table(["set", "K", "method", "nprobe", "entries scanned",
                  "distinct vectors", "repeats, share", "MB as IVF-Flat"], lines)


def table_rates(rows):
    """Queries a second at equal recall, with the memory beside it. The recalls
    are 0.80, 0.90 and 0.95 of the most that k-means reaches with the codec: of
    two code sizes that are compared, with the shorter one."""
    def family(row):
        return row["dataset"], row["nlist"], re.sub(r"\d+", "", row["codec"])

    searched = [row for row in rows if row["codec"] != SCANS]
    most = {}
    for row in searched:
        if method(row) == REFERENCE:
            most[family(row)] = min(max(row["recall_10"]),
                                    most.get(family(row), 1))
    lines = []
    for row in sorted(searched, key=lambda r: (family(r)[:1], r["nlist"] == 0)):
        line = [row["dataset"], str(row["nlist"] or "-"), row["codec"],
                f"{row['centroids']}: {row['policy']}",
                number(row["bytes"] / 1e6, 1)]
        for share in (0.8, 0.9, 0.95):
            wanted = share * most.get(family(row), 1)
            rates = [at_recall(row, wanted, field) for field in
                     ("queries_per_second_1", "queries_per_second")]
            line.append(f"{wanted:.3f}: " + " / ".join(
                "-" if rate is None else f"{rate:,.0f}" for rate in rates))
        line.append(number(max(row["recall_10"]), 3))
        lines.append(line)
    return table(["set", "K", "codec", "method", "MB",
                  "R@10: queries/s on one / all threads", "", "", "most"], lines)


def table_seconds(rows):
    """What training and adding takes."""
    lines = []
    for case in cases(rows):
        for row in of_case(rows, case):
            if row["codec"] == SCANS:
                continue
            lines.append([case[0], str(case[1]), row["codec"],
                          f"{row['centroids']}: {row['policy']}"]
                         + [number(row[f"{field}_seconds"], 1)
                            for field in ("fit", "codec", "learn", "add")])
    return table(["set", "K", "codec", "method", "centroids, s", "codec, s",
                  "policy, s", "add, s"], lines)


TABLES = {name.removeprefix("table_"): function
          for name, function in list(globals().items())
          if name.startswith("table_")}


def fill_tables(path, rows):
    text = path.read_text()
    block = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
    path.write_text(block.sub(
        lambda match: f"{match[1]}\n{TABLES[match[2]](rows)}\n\n{match[3]}", text))


def draw_panel(axes, rows, x, label):
    import matplotlib.ticker as ticker
    for key, (_, color, marker, line) in SHOWN.items():
        group = [row for row in rows if method(row) == key]
        if not group:
            continue
        points = list(zip(mean_curve(group, x), mean_curve(group, "recall_10")))
        # From where nothing is left to see.
        end = next((i for i, point in enumerate(points) if point[1] > 0.997),
                   len(points))
        points = [point for point in points[:end + 1] if point[1] >= 0.5]
        axes.plot(*zip(*points), line, color=color, marker=marker,
                  markersize=3.5, linewidth=1.2)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda v, _: f"{v:,g}"))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.set_xlabel(label)
    axes.set_ylim(0.5, 1.005)
    axes.grid(True, color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)


def searched_rows(rows, case):
    """What the panel of rates shows: flat codes, and graphs beside them."""
    return [row for row in rows if row["dataset"] == case[0]
            and (row["codec"] == "hnsw"
                 or (row["codec"] == "Flat" and row["nlist"] == case[1]))]


def draw_case(panels, rows, case):
    """Recall against lists, scans, and, if there is a panel left, rates."""
    scans = of_case(rows, case, SCANS)
    draw_panel(panels[0], scans, "nprobe", "lists probed")
    draw_panel(panels[1], scans, "scanned", "entries scanned, copies counted")
    if len(panels) > 2:
        draw_panel(panels[2], searched_rows(rows, case), "queries_per_second_1",
                   "queries/s, one thread, IVF-Flat")
    panels[0].set_ylabel("recall@10")
    panels[0].set_title(f"{case[0]}, {case[1]} lists", loc="left", fontsize=9)


def draw(rows, directory):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D
    plt.rcParams.update({"font.size": 8, "svg.fonttype": "none",
                         "svg.hashsalt": "flashgmm"})
    directory.mkdir(parents=True, exist_ok=True)

    def figure(name, shown):
        columns = 3 if all(searched_rows(rows, case) for case in shown) else 2
        fig, axes = plt.subplots(len(shown), columns, squeeze=False,
                                 figsize=(9, 0.55 + 2.35 * len(shown)))
        for panels, case in zip(axes, shown):
            draw_case(panels, rows, case)
        present = {method(row) for row in rows
                   if row["dataset"] in {case[0] for case in shown}}
        handles = [Line2D([], [], color=color, marker=marker, linestyle=line,
                          markersize=3.5, linewidth=1.2, label=label)
                   for key, (label, color, marker, line) in SHOWN.items()
                   if key in present]
        fig.legend(handles=handles, loc="upper center", ncols=len(handles),
                   frameon=False, handlelength=3)
        fig.tight_layout(rect=(0, 0, 1, 1 - 0.3 / fig.get_figheight()))
        for suffix, options in [("svg", {"metadata": {"Date": None}}),
                                ("png", {"dpi": 120})]:
            fig.savefig(directory / f"{name}.{suffix}", **options)
        plt.close(fig)

    every = cases(rows)
    # Of each set, the number of lists that most sets have.
    counts = defaultdict(int)
    for _, nlist in every:
        counts[nlist] += 1
    first = {}
    for case in sorted(every, key=lambda case: -counts[case[1]]):
        first.setdefault(case[0], case)
    figure("recall", [first[name] for name in dict.fromkeys(c[0] for c in every)])
    for case in every:
        figure(f"recall_{case[0]}_{case[1]}", [case])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+")
    parser.add_argument("--figures", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--tables", type=pathlib.Path, nargs="*", default=[],
                        metavar="FILE.md")
    options = parser.parse_args()
    rows = read_rows(options.rows)
    if options.figures:
        draw(rows, options.figures)
    for path in options.tables:
        fill_tables(path, rows)
    if not options.figures and not options.tables:
        for name, function in TABLES.items():
            print(f"{name}: {function.__doc__}\n\n{function(rows)}\n")


if __name__ == "__main__":
    main()
