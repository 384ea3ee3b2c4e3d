// A line chart as SVG inside an HTML page.  Colours and line styles are classes that the page's
// style sheet defines: c0 to c7 and ink (colour), k-ours, k-static, k-published, k-ablation (line).
#pragma once

#include <string>
#include <vector>

namespace paradyse {

struct ChartPoint {
  double x = 0;
  double y = 0;
};

struct ChartLine {
  std::string name;
  std::string style;  // classes
  std::vector<ChartPoint> points;
  bool cut = false;  // ends in a cross: what follows was not possible
};

struct LineChart {
  std::string id;     // of its elements in the page
  std::string title;  // for who cannot see it, as the next
  std::string description;
  std::string x_label;  // x is a number of tokens, on a log scale
  std::string y_label;
  bool log_y = false;  // else from 0
  double height = 360;
  std::vector<ChartLine> lines;  // the last one on top
};

// One <svg> with a title, a description, readable ticks and each line's name beside its end.  Lines
// without points are left out; without any line "".
std::string svg(LineChart chart);

// Where an axis from `low` to `high` has its ticks: at round numbers, about `count`.
std::vector<double> linear_ticks(double low, double high, int count);
// 1, 10, 100 or 1, 2, 5, 10; round numbers where the axis is too short for two of them.
std::vector<double> decade_ticks(double low, double high);
// Powers of 2, 4, 8, ...; round numbers where the axis is too short for three of them.
std::vector<double> token_ticks(double low, double high);

}  // namespace paradyse
