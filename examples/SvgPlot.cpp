#include "SvgPlot.h"

#include <algorithm>
#include <cmath>

#include <faiss_flashgmm/utils/Error.h>

using faiss_flashgmm::format;

namespace {

constexpr double kPanelWidth = 470;
constexpr double kPanelHeight = 350;
constexpr double kLeft = 62;
constexpr double kRight = 18;
constexpr double kTop = 42;
constexpr double kBottom = 56;
constexpr double kLegendRow = 24;
constexpr double kLegendColumn = 290;

/// Position of a value on an axis that runs from pixel `from` to pixel `to`.
struct Scale {
    double low;
    double high;
    double from;
    double to;

    double operator()(double value) const {
        return from + (value - low) / (high - low) * (to - from);
    }
};

std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) {
        switch (c) {
            case '&':
                out += "&amp;";
                break;
            case '<':
                out += "&lt;";
                break;
            case '>':
                out += "&gt;";
                break;
            default:
                out += c;
        }
    }
    return out;
}

std::string text(
        double x,
        double y,
        const std::string& what,
        const char* attributes) {
    return format(
            "<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n",
            x,
            y,
            attributes,
            escaped(what).c_str());
}

std::string line(
        double x1,
        double y1,
        double x2,
        double y2,
        const char* attributes) {
    return format(
            "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n",
            x1,
            y1,
            x2,
            y2,
            attributes);
}

std::string marker(const Curve& curve, double x, double y) {
    const char* color = curve.color.c_str();
    switch (curve.marker) {
        case Curve::Marker::square:
            return format(
                    "<rect x=\"%.1f\" y=\"%.1f\" width=\"7\" height=\"7\" "
                    "fill=\"%s\"/>\n",
                    x - 3.5,
                    y - 3.5,
                    color);
        case Curve::Marker::triangle:
            return format(
                    "<path d=\"M%.1f %.1fl4.5 8h-9z\" fill=\"%s\"/>\n",
                    x,
                    y - 5,
                    color);
        default:
            return format(
                    "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.8\" fill=\"%s\"/>\n",
                    x,
                    y,
                    color);
    }
}

std::string stroke(const Curve& curve) {
    return format(
            "fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s",
            curve.color.c_str(),
            curve.dashed ? " stroke-dasharray=\"6 4\"" : "");
}

/// 1, 2 and 5 times the powers of ten within [low, high].
std::vector<double> decimal_ticks(double low, double high) {
    std::vector<double> ticks;
    for (double decade = std::pow(10, std::floor(std::log10(low)));
         decade <= high;
         decade *= 10) {
        for (const double step : {1, 2, 5}) {
            if (decade * step >= low && decade * step <= high) {
                ticks.push_back(decade * step);
            }
        }
    }
    return ticks;
}

std::string tick_label(double value) {
    return value >= 1000 ? format("%gk", value / 1000) : format("%g", value);
}

std::string draw_panel(const Panel& panel) {
    double x_low = HUGE_VAL;
    double x_high = 0;
    double y_low = 1;
    for (const Curve& curve : panel.curves) {
        for (const auto& [x, y] : curve.points) {
            x_low = std::min(x_low, x);
            x_high = std::max(x_high, x);
            y_low = std::min(y_low, y);
        }
    }
    y_low = std::min(0.9, std::floor(y_low * 10) / 10);

    const double right = kPanelWidth - kRight;
    const double bottom = kPanelHeight - kBottom;
    const double margin = 1.08; // keeps the first and last marker inside
    const Scale x_scale{
            std::log(x_low / margin), std::log(x_high * margin), kLeft, right};
    const Scale y_scale{y_low, 1, bottom, kTop};

    std::string svg = text(
            (kLeft + right) / 2,
            kTop - 14,
            panel.title,
            "text-anchor=\"middle\" font-size=\"15\" font-weight=\"bold\"");
    for (int tenth = std::lround(y_low * 10); tenth <= 10; tenth++) {
        const double y = y_scale(tenth / 10.0);
        svg += line(kLeft, y, right, y, "stroke=\"#ddd\"");
        svg +=
                text(kLeft - 8,
                     y + 4,
                     format("%.1f", tenth / 10.0),
                     "text-anchor=\"end\"");
    }
    const std::vector<double> ticks = panel.x_ticks.empty()
            ? decimal_ticks(x_low, x_high)
            : panel.x_ticks;
    for (const double tick : ticks) {
        const double x = x_scale(std::log(tick));
        svg += line(x, kTop, x, bottom, "stroke=\"#ddd\"");
        svg += text(x, bottom + 18, tick_label(tick), "text-anchor=\"middle\"");
    }
    svg += format(
            "<rect x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\" fill=\"none\" "
            "stroke=\"#444\"/>\n",
            kLeft,
            kTop,
            right - kLeft,
            bottom - kTop);
    svg +=
            text((kLeft + right) / 2,
                 bottom + 40,
                 panel.x_label,
                 "text-anchor=\"middle\"");
    svg += format("<g transform=\"rotate(-90)\">");
    svg += text(
            -(kTop + bottom) / 2, 18, panel.y_label, "text-anchor=\"middle\"");
    svg += "</g>\n";

    for (const Curve& curve : panel.curves) {
        std::string path;
        std::string markers;
        for (const auto& [x, y] : curve.points) {
            const double px = x_scale(std::log(x));
            const double py = y_scale(y);
            path += format("%c%.1f %.1f", path.empty() ? 'M' : 'L', px, py);
            markers += marker(curve, px, py);
        }
        svg += format(
                "<path d=\"%s\" %s/>\n", path.c_str(), stroke(curve).c_str());
        svg += markers;
    }
    return svg;
}

std::string draw_legend(const std::vector<Curve>& curves, int columns) {
    std::string svg;
    for (size_t i = 0; i < curves.size(); i++) {
        const double x = kLeft + kLegendColumn * (i % columns);
        const double y = kLegendRow * (i / columns + 0.5);
        svg += line(x, y, x + 34, y, stroke(curves[i]).c_str());
        svg += marker(curves[i], x + 17, y);
        svg += text(x + 42, y + 4, curves[i].name, "");
    }
    return svg;
}

} // namespace

std::string to_svg(const std::vector<Panel>& panels, int columns) {
    const int rows = int((panels.size() + columns - 1) / columns);
    const double width = kPanelWidth * columns;
    const auto& curves = panels.at(0).curves;
    const int legend_columns =
            std::max(1, int((width - kLeft) / kLegendColumn));
    const int legend_rows =
            int(curves.size() + legend_columns - 1) / legend_columns;
    const double height = kPanelHeight * rows + kLegendRow * legend_rows + 12;

    std::string svg =
            format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" "
                   "height=\"%g\" viewBox=\"0 0 %g %g\" "
                   "font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\" "
                   "font-size=\"12\" fill=\"#222\">\n"
                   "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
                   width,
                   height,
                   width,
                   height);
    for (size_t i = 0; i < panels.size(); i++) {
        svg +=
                format("<g transform=\"translate(%g %g)\">\n",
                       kPanelWidth * (i % columns),
                       kPanelHeight * (i / columns));
        svg += draw_panel(panels[i]) + "</g>\n";
    }
    svg += format("<g transform=\"translate(0 %g)\">\n", kPanelHeight * rows);
    svg += draw_legend(curves, legend_columns) + "</g>\n</svg>\n";
    return svg;
}
