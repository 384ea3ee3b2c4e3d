// A bar chart as an SVG file of its own.
#pragma once

#include <string>
#include <vector>

namespace paradyse {

struct Bar {
  std::string name;   // at its left
  double value = 0;   // from 0
  std::string label;  // at its end
  bool hollow = false;
};

struct BarChart {
  std::string title;
  std::string description;  // for who cannot see it, and below the title
  std::vector<Bar> bars;    // from above
};

// Lengths are as the values, on a log scale where the largest is more than twenty times the least.
std::string svg(const BarChart& chart);

}  // namespace paradyse
