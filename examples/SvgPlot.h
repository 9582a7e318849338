#pragma once

#include <string>
#include <utility>
#include <vector>

struct Curve {
    enum class Marker { circle, square, triangle };

    std::string name;
    std::string color; ///< as SVG writes it
    bool dashed = false;
    Marker marker = Marker::circle;
    std::vector<std::pair<double, double>> points; ///< x > 0, 0 <= y <= 1
};

/// Curves over a logarithmic x axis, with y between 0 and 1.
struct Panel {
    std::string title;
    std::string x_label;
    std::string y_label;
    std::vector<double> x_ticks; ///< empty: 1, 2, 5, 10, 20, ...
    std::vector<Curve> curves;   ///< the same names in every panel
};

/** A figure of panels, row by row, with one legend below.
 *
 * @param columns   panels a row, >= 1
 */
std::string to_svg(const std::vector<Panel>& panels, int columns);
