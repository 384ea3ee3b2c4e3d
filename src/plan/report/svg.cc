#include "src/plan/report/svg.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "src/plan/report/page_text.h"

namespace paradyse {

namespace {

constexpr double kWidth = 960;
constexpr double kLeft = 66;
constexpr double kRight = 226;  // for the names
constexpr double kTop = 34;
constexpr double kBottom = 50;
constexpr double kNameGap = 17;  // from one name to the next
constexpr std::size_t kNameLetters = 25;

struct Axis {
  double low = 0;  // of the data, as scaled
  double high = 1;
  bool log = false;
  double from = 0;  // in the picture
  double to = 1;

  [[nodiscard]] double at(double value) const {
    const double scaled = log ? std::log2(value) : value;
    return from + (scaled - low) / (high - low) * (to - from);
  }
};

// A name beside the end of a line.
struct Name {
  const ChartLine* line = nullptr;
  double end_x = 0;
  double end_y = 0;
  double y = 0;  // of the name: near end_y and apart from the others
};

std::string number(double value) {
  std::string text = decimals(value, 1);
  std::erase(text, ',');
  return text;
}

std::string attribute(const char* name, double value) {
  return std::string(" ") + name + "=\"" + number(value) + "\"";
}

std::string straight(const char* style, double x1, double y1, double x2, double y2) {
  return std::string("<line class=\"") + style + "\"" + attribute("x1", x1) + attribute("y1", y1) +
         attribute("x2", x2) + attribute("y2", y2) + "/>\n";
}

std::string words(const char* style, double x, double y, const std::string& text) {
  return std::string("<text class=\"") + style + "\"" + attribute("x", x) + attribute("y", y) +
         ">" + escaped(text) + "</text>\n";
}

// The x and y axes round all points.
struct Axes {
  Axis x;
  Axis y;
};

Axes axes_of(const LineChart& chart, double height) {
  constexpr double kMargin = 0.02;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double low_x = kInfinity;
  double high_x = -kInfinity;
  double low_y = kInfinity;
  double high_y = -kInfinity;
  for (const ChartLine& line : chart.lines) {
    for (const ChartPoint& point : line.points) {
      low_x = std::min(low_x, point.x);
      high_x = std::max(high_x, point.x);
      low_y = std::min(low_y, point.y);
      high_y = std::max(high_y, point.y);
    }
  }
  const auto axis = [&](double low, double high, bool log, double from, double to) {
    Axis made{.low = low, .high = high, .log = log, .from = from, .to = to};
    if (log) {
      made.low = std::log2(low);
      made.high = std::log2(high);
    }
    double margin = (made.high - made.low) * kMargin;
    if (margin <= 0) {  // all in one place: in the middle
      margin = log ? 0.5 : std::max(1e-9, std::abs(made.high) / 2);
    }
    made.high += margin;
    if (log) {
      made.low -= margin;
    }
    return made;
  };
  return {
      .x = axis(low_x, high_x, true, kLeft, kWidth - kRight),
      .y = axis(chart.log_y ? low_y : 0, high_y, chart.log_y, height - kBottom, kTop)};
}

double unscaled(const Axis& axis, double scaled) { return axis.log ? std::exp2(scaled) : scaled; }

// The ticks of y with as many decimals as tell them apart.
std::string y_text(const std::vector<double>& ticks, double tick, bool log) {
  const double step = log ? tick : ticks.size() > 1 ? ticks[1] - ticks[0] : tick / 10;
  if (!(step > 0)) {
    return "0";
  }
  return decimals(tick, std::max(0, -static_cast<int>(std::floor(std::log10(step) + 1e-9))));
}

std::string grid(const LineChart& chart, const Axes& axes, double height) {
  std::string out;
  const double bottom = height - kBottom;
  const double right = kWidth - kRight;
  const double y_low = unscaled(axes.y, axes.y.low);
  const double y_high = unscaled(axes.y, axes.y.high);
  const std::vector<double> y_ticks =
      chart.log_y ? decade_ticks(y_low, y_high) : linear_ticks(y_low, y_high, 5);
  for (const double tick : y_ticks) {
    const double y = axes.y.at(tick);
    out += straight("grid", kLeft, y, right, y);
    out += words("tick end", kLeft - 8, y + 4, y_text(y_ticks, tick, chart.log_y));
  }
  for (const double tick :
       token_ticks(unscaled(axes.x, axes.x.low), unscaled(axes.x, axes.x.high))) {
    const double x = axes.x.at(tick);
    out += straight("grid", x, kTop, x, bottom);
    out += words("tick middle", x, bottom + 18, tokens_text(std::llround(tick)));
  }
  out += straight("axis", kLeft, bottom, right, bottom);
  out += words("label", 2, 16, chart.y_label);
  out += words("label middle", (kLeft + right) / 2, height - 8, chart.x_label);
  return out;
}

std::string course(const ChartLine& line, const Axes& axes) {
  std::string points;
  for (const ChartPoint& point : line.points) {
    points +=
        (points.empty() ? "" : " ") + number(axes.x.at(point.x)) + "," + number(axes.y.at(point.y));
  }
  return "<g class=\"line " + escaped(line.style) + "\"><title>" + escaped(line.name) +
         "</title><polyline points=\"" + points + "\"/></g>\n";
}

std::string end(const ChartLine& line, const Axes& axes) {
  const double x = axes.x.at(line.points.back().x);
  const double y = axes.y.at(line.points.back().y);
  std::string out = "<g class=\"line " + escaped(line.style) + "\"><title>" + escaped(line.name) +
                    (line.cut ? " ends at " + decimals(line.points.back().x, 0) + " tokens" : "") +
                    "</title>";
  if (line.cut) {
    constexpr double kArm = 5;
    out += straight("cross", x - kArm, y - kArm, x + kArm, y + kArm);
    out += straight("cross", x - kArm, y + kArm, x + kArm, y - kArm);
  } else {
    out += "<circle" + attribute("cx", x) + attribute("cy", y) + " r=\"3\"/>";
  }
  return out + "</g>\n";
}

// Each name as near to the end of its line as the others let it.
std::vector<Name> names_of(const LineChart& chart, const Axes& axes, double height) {
  std::vector<Name> names;
  for (const ChartLine& line : chart.lines) {
    const double y = axes.y.at(line.points.back().y);
    names.push_back({.line = &line, .end_x = axes.x.at(line.points.back().x), .end_y = y, .y = y});
  }
  std::stable_sort(
      names.begin(), names.end(), [](const Name& a, const Name& b) { return a.end_y < b.end_y; });
  for (std::size_t i = 1; i < names.size(); ++i) {
    names[i].y = std::max(names[i].y, names[i - 1].y + kNameGap);
  }
  double room = height - kBottom;
  for (std::size_t i = names.size(); i-- > 0;) {
    names[i].y = std::min(names[i].y, room);
    room = names[i].y - kNameGap;
  }
  return names;
}

std::string written(const Name& name) {
  constexpr double kNear = 20;
  const double right = kWidth - kRight;
  const double sample = right + 16;
  std::string out = "<g class=\"line " + escaped(name.line->style) + "\">";
  if (right - name.end_x < kNear) {
    out += straight("leader", name.end_x + 4, name.end_y, sample - 2, name.y);
  }
  out += straight("sample", sample, name.y, sample + 22, name.y);
  out += "</g>\n";
  const std::string text = shortened(name.line->name, kNameLetters);
  out += words("name", sample + 28, name.y + 4, text + (name.line->cut ? " \u00d7" : ""));
  return out;
}

}  // namespace

std::vector<double> linear_ticks(double low, double high, int count) {
  constexpr double kNearly = 0.75;  // rather a tick more than half as many
  const double rough = (high - low) / count;
  if (!(rough > 0) || !std::isfinite(rough)) {
    return {low};
  }
  const double decade = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * decade;
  for (const double round : {5.0, 2.0, 1.0}) {
    if (round * decade >= rough * kNearly) {
      step = round * decade;
    }
  }
  std::vector<double> ticks;
  const double first = std::ceil(low / step - 1e-9);
  for (int i = 0; (first + i) * step <= high * (1 + 1e-12); ++i) {
    ticks.push_back((first + i) * step);
  }
  return ticks;
}

std::vector<double> decade_ticks(double low, double high) {
  std::vector<double> ticks;
  const bool fine = high / low < 1000;
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::floor(std::log10(high)));
  for (int power = first; power <= last; ++power) {
    for (const double round : {1.0, 2.0, 5.0}) {
      const double tick = round * std::pow(10, power);
      if (tick >= low && tick <= high && (fine || round == 1)) {
        ticks.push_back(tick);
      }
    }
  }
  return ticks.size() < 2 ? linear_ticks(low, high, 4) : ticks;
}

std::vector<double> token_ticks(double low, double high) {
  constexpr int kMost = 10;
  const int first = static_cast<int>(std::ceil(std::log2(low) - 1e-9));
  const int last = static_cast<int>(std::floor(std::log2(high) + 1e-9));
  if (last - first < 2) {
    std::vector<double> ticks;
    for (const double tick : linear_ticks(low, high, 4)) {
      if (tick == std::round(tick)) {
        ticks.push_back(tick);
      }
    }
    return ticks;
  }
  const int octaves = (last - first) / kMost + 1;
  std::vector<double> ticks;
  for (int power = first; power <= last; ++power) {
    if (power % octaves == 0) {
      ticks.push_back(std::exp2(power));
    }
  }
  return ticks;
}

std::string svg(LineChart chart) {
  std::erase_if(chart.lines, [](const ChartLine& line) { return line.points.empty(); });
  if (chart.lines.empty()) {
    return "";
  }
  const auto count = static_cast<double>(chart.lines.size());
  const double height = std::max(chart.height, kTop + kBottom + kNameGap * count);
  const Axes axes = axes_of(chart, height);
  const std::string id = escaped(chart.id);
  std::string out = "<svg role=\"img\" aria-labelledby=\"" + id + "-title " + id +
                    "-text\" viewBox=\"0 0 " + number(kWidth) + " " + number(height) + "\">\n";
  out += "<title id=\"" + id + "-title\">" + escaped(chart.title) + "</title>\n";
  out += "<desc id=\"" + id + "-text\">" + escaped(chart.description) + "</desc>\n";
  out += grid(chart, axes, height);
  for (const ChartLine& line : chart.lines) {
    out += course(line, axes);
  }
  for (const ChartLine& line : chart.lines) {
    out += end(line, axes);
  }
  for (const Name& name : names_of(chart, axes, height)) {
    out += written(name);
  }
  return out + "</svg>\n";
}

}  // namespace paradyse
