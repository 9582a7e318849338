#include "Report.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <optional>
#include <random>

#include <faiss_flashgmm/ScanCurve.h>
#include <faiss_flashgmm/utils/Error.h>
#include <faiss_flashgmm/utils/Json.h>

#include "SvgPlot.h"

using faiss_flashgmm::format;
using faiss_flashgmm::JsonObject;

namespace {

const Method& reference(const Experiment& experiment) {
    return *std::find_if(
            experiment.methods.begin(),
            experiment.methods.end(),
            [](const Method& method) { return method.is_reference; });
}

/// A method's cost and gain at one nprobe.
struct Point {
    double lists = 0;
    double recall = 0;
    double scanned = 0;
};

using Points = std::vector<Point>; ///< nprobe increasing

Points points_of(const Method& method) {
    Points points;
    for (const Measurement& m : method.measurements) {
        points.push_back({double(m.nprobe), m.recall, m.scanned});
    }
    return points;
}

/// The same, of some of the queries.
Points points_of(const Method& method, const std::vector<size_t>& queries) {
    Points points;
    for (const Measurement& m : method.measurements) {
        Point point{double(m.nprobe), 0, 0};
        for (const size_t query : queries) {
            point.recall += m.recall_of_query[query] / queries.size();
            point.scanned += m.scanned_of_query[query] / queries.size();
        }
        points.push_back(point);
    }
    return points;
}

/// What a recall costs; nothing outside what was measured.
std::optional<double> cost_of_recall(
        const Points& points,
        double recall,
        double Point::*cost) {
    std::vector<double> recalls, costs;
    for (const Point& point : points) {
        recalls.push_back(point.recall);
        costs.push_back(point.*cost);
    }
    const double value = faiss_flashgmm::cost_of_recall(recalls, costs, recall);
    return recall < recalls.front() || std::isinf(value) ? std::nullopt
                                                         : std::optional(value);
}

/// Entries that a method scans for a recall, as a share of what another does.
struct Share {
    double value = 0;
    double error = 0; ///< standard error, by chance in the choice of queries

    bool is_clear() const {
        return std::fabs(value - 1) > 2 * error;
    }
    std::string text() const {
        return format("%.2f +-%.2f", value, 2 * error);
    }
};

/// The error is a bootstrap: the queries are drawn again, with replacement.
Share share_of(const Method& method, const Method& base, double recall) {
    const auto share = [&](const Points& ours,
                           const Points& theirs) -> std::optional<double> {
        const auto a = cost_of_recall(ours, recall, &Point::scanned);
        const auto b = cost_of_recall(theirs, recall, &Point::scanned);
        if (!a || !b) {
            return std::nullopt;
        }
        return *a / *b;
    };
    constexpr int kDraws = 200;
    std::mt19937 random(1);
    std::vector<size_t> queries(base.measurements[0].recall_of_query.size());
    const double value = *share(points_of(method), points_of(base));
    double squares = 0;
    int draws = 0;
    for (int draw = 0; draw < kDraws; draw++) {
        for (size_t& query : queries) {
            query = random() % queries.size();
        }
        const auto drawn =
                share(points_of(method, queries), points_of(base, queries));
        if (drawn) {
            squares += (*drawn - value) * (*drawn - value);
            draws++;
        }
    }
    return {value, std::sqrt(squares / std::max(draws, 1))};
}

/// The recall to compare costs at: the highest of 0.90, 0.85, ... that every
/// method passes, clear of where the reference levels off. 0: there is none.
double common_recall(const Experiment& experiment) {
    const double most = reference(experiment).measurements.back().recall;
    for (int percent = 90; percent > 0; percent -= 5) {
        const double recall = percent / 100.0;
        if (recall <= 0.95 * most &&
            std::all_of(
                    experiment.methods.begin(),
                    experiment.methods.end(),
                    [&](const Method& method) {
                        return cost_of_recall(
                                       points_of(method),
                                       recall,
                                       &Point::scanned)
                                .has_value();
                    })) {
            return recall;
        }
    }
    return 0;
}

std::string title(const Experiment& experiment) {
    return format(
            "%s, %s: %" PRId64 " vectors x %" PRId64 ", %" PRId64
            " lists, %" PRId64 " queries",
            experiment.dataset.c_str(),
            experiment.codec.c_str(),
            experiment.n,
            experiment.d,
            experiment.nlist,
            experiment.nqueries);
}

void print_row(
        const Method& method,
        const char* label,
        const char* number_format,
        double Measurement::*field) {
    std::printf("  %-12s", label);
    for (const Measurement& m : method.measurements) {
        std::printf(number_format, m.*field);
    }
    std::printf("\n");
}

Curve to_curve(const Method& method, const std::vector<Method>& methods) {
    // Okabe and Ito's palette: distinct for every common colour blindness.
    static const char* const kColors[] = {
            "#000000", "#0072B2", "#D55E00", "#009E73"};
    static constexpr Curve::Marker kMarkers[] = {
            Curve::Marker::circle,
            Curve::Marker::square,
            Curve::Marker::triangle};
    std::vector<std::string> models;
    for (const Method& other : methods) {
        if (std::find(models.begin(), models.end(), other.model) ==
            models.end()) {
            models.push_back(other.model);
        }
    }
    const size_t model = std::find(models.begin(), models.end(), method.model) -
            models.begin();
    Curve curve;
    curve.name = method.name;
    curve.color = kColors[model % std::size(kColors)];
    curve.marker = kMarkers[model % std::size(kMarkers)];
    curve.dashed = !method.has_copies;
    return curve;
}

} // namespace

void print_table(const Experiment& experiment) {
    std::printf("\n%s\n", title(experiment).c_str());
    std::printf("  %-12s", "nprobe");
    for (const Measurement& m : experiment.methods.front().measurements) {
        std::printf("%9" PRId64, m.nprobe);
    }
    std::printf("\n");
    for (const Method& method : experiment.methods) {
        std::printf(
                "%s   (%.2f entries a vector, centroids trained in %.2f s)\n",
                method.name.c_str(),
                method.entries_per_vector,
                method.train_seconds);
        print_row(method, "recall@10", "%9.3f", &Measurement::recall);
        print_row(method, "scanned", "%9.0f", &Measurement::scanned);
        print_row(method, "ms a query", "%9.3f", &Measurement::milliseconds);
    }
}

void print_findings(const Experiment& experiment) {
    const Method& base = reference(experiment);
    const double recall = common_recall(experiment);
    std::printf("\n%s\n", title(experiment).c_str());
    if (recall == 0) {
        std::printf("  no recall that all methods reach\n");
        return;
    }
    std::printf(
            "  %-26s %6s %8s  %-12s %s\n",
            format("for a recall of %.2f", recall).c_str(),
            "lists",
            "scanned",
            "of k-means",
            "entries a vector");
    for (const Method& method : experiment.methods) {
        const Points points = points_of(method);
        std::printf(
                "  %-26s %6.1f %8.0f  %-12s %7.2f\n",
                method.name.c_str(),
                *cost_of_recall(points, recall, &Point::lists),
                *cost_of_recall(points, recall, &Point::scanned),
                method.is_reference
                        ? ""
                        : share_of(method, base, recall).text().c_str(),
                method.entries_per_vector);
    }
}

void print_summary(const std::vector<Experiment>& experiments) {
    int higher = 0;
    int equal = 0;
    int lower = 0;
    double best_gain = 0;
    double worst_gain = 0;
    std::string best;
    std::string worst;
    std::string less_work;
    std::string more_work;
    int unclear = 0;
    double least_copies = HUGE_VAL;
    double most_copies = 0;
    double fastest = HUGE_VAL;
    double slowest = 0;
    for (const Experiment& experiment : experiments) {
        const Method& base = reference(experiment);
        const double recall = common_recall(experiment);
        for (const Method& method : experiment.methods) {
            if (method.is_reference) {
                continue;
            }
            const std::string name =
                    format("%s, %s, %s",
                           experiment.dataset.c_str(),
                           experiment.codec.c_str(),
                           method.name.c_str());
            const double time = method.train_seconds / base.train_seconds;
            fastest = std::min(fastest, time);
            slowest = std::max(slowest, time);
            if (recall > 0) {
                const Share share = share_of(method, base, recall);
                const std::string line = format(
                        "      %-42s %s\n", name.c_str(), share.text().c_str());
                if (!share.is_clear()) {
                    unclear++;
                } else {
                    (share.value < 1 ? less_work : more_work) += line;
                }
            }
            if (!method.has_copies) {
                continue;
            }
            least_copies = std::min(least_copies, method.entries_per_vector);
            most_copies = std::max(most_copies, method.entries_per_vector);
            for (size_t i = 0; i < method.measurements.size(); i++) {
                const Measurement& ours = method.measurements[i];
                const Measurement& theirs = base.measurements[i];
                const double gain = ours.recall - theirs.recall;
                (gain > 0 ? higher : gain < 0 ? lower : equal)++;
                const auto example = [&](const char* what) {
                    return format(
                            "    %s: %s, nprobe %" PRId64
                            ":\n      %.3f instead of %.3f, for %.2fx the "
                            "entries scanned\n",
                            what,
                            name.c_str(),
                            ours.nprobe,
                            ours.recall,
                            theirs.recall,
                            ours.scanned / theirs.scanned);
                };
                if (gain > best_gain) {
                    best_gain = gain;
                    best = example("most gained");
                }
                if (gain < worst_gain) {
                    worst_gain = gain;
                    worst = example("most lost");
                }
            }
        }
    }
    const auto or_none = [](const std::string& list) {
        return list.empty() ? "      none\n" : list.c_str();
    };
    std::printf(
            "\nIn short, against k-means\n"
            "  At equal nprobe, two lists (tau = 1/K) have a higher recall "
            "in %d cases,\n  the same in %d, a lower one in %d\n%s%s"
            "  At equal recall, a mixture\n"
            "    clearly scans less in\n%s"
            "    clearly scans more in\n%s"
            "    and in the %d other cases differs by no more than chance\n"
            "  Two lists store %.2fx to %.2fx the entries\n"
            "  Training a mixture takes %.2fx to %.2fx the time\n",
            higher,
            equal,
            lower,
            best.c_str(),
            worst.c_str(),
            or_none(less_work),
            or_none(more_work),
            unclear,
            least_copies,
            most_copies,
            fastest,
            slowest);
}

void write_json(
        const std::vector<Experiment>& experiments,
        const std::string& path) {
    std::ofstream file(path);
    const char* separator = "[\n";
    for (const Experiment& experiment : experiments) {
        for (const Method& method : experiment.methods) {
            for (const Measurement& m : method.measurements) {
                file << separator
                     << JsonObject()
                                .add("dataset", experiment.dataset)
                                .add("n", experiment.n)
                                .add("d", experiment.d)
                                .add("nlist", experiment.nlist)
                                .add("method", method.name)
                                .add("codec", experiment.codec)
                                .add("nprobe", m.nprobe)
                                .add("recall_at_10", m.recall)
                                .add("scanned", m.scanned)
                                .add("entries_per_vector",
                                     method.entries_per_vector)
                                .add("train_seconds", method.train_seconds)
                                .add("ms_per_query", m.milliseconds)
                                .add("threads", experiment.threads)
                                .str();
                separator = ",\n";
            }
        }
    }
    file << "\n]\n" << std::flush;
    FLASHGMM_THROW_IF_NOT_FMT(file, "cannot write %s", path.c_str());
}

void write_figure(
        const std::vector<Experiment>& experiments,
        const std::string& codec,
        const std::string& path) {
    std::vector<Panel> panels;
    for (const Experiment& experiment : experiments) {
        if (experiment.codec != codec) {
            continue;
        }
        Panel by_nprobe;
        by_nprobe.title =
                format("%s, %s, %" PRId64 " lists",
                       experiment.dataset.c_str(),
                       codec.c_str(),
                       experiment.nlist);
        by_nprobe.x_label = "nprobe: lists probed for a query";
        by_nprobe.y_label = "recall@10";
        Panel by_scanned = by_nprobe;
        by_scanned.x_label = "entries scanned for a query (copies counted)";
        for (const Method& method : experiment.methods) {
            Curve curve = to_curve(method, experiment.methods);
            Curve scanned = curve;
            for (const Measurement& m : method.measurements) {
                curve.points.emplace_back(m.nprobe, m.recall);
                scanned.points.emplace_back(m.scanned, m.recall);
            }
            by_nprobe.curves.push_back(std::move(curve));
            by_scanned.curves.push_back(std::move(scanned));
        }
        for (const Measurement& m : experiment.methods.front().measurements) {
            by_nprobe.x_ticks.push_back(m.nprobe);
        }
        panels.push_back(std::move(by_nprobe));
        panels.push_back(std::move(by_scanned));
    }
    std::ofstream file(path);
    file << to_svg(panels, 2) << std::flush;
    FLASHGMM_THROW_IF_NOT_FMT(file, "cannot write %s", path.c_str());
}
