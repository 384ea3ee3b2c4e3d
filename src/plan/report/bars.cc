#include "src/plan/report/bars.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include <fmt/format.h>

namespace paradyse {
namespace {

constexpr double kWidth = 760;
constexpr double kNames = 190;   // room at the left
constexpr double kLabels = 170;  // and at the right
constexpr double kTop = 64;
constexpr double kRow = 26;
constexpr double kLogFrom = 20;

std::string escaped(const std::string& text) {
  static const std::map<char, std::string> entities = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}};
  std::string safe;
  for (const char letter : text) {
    const auto entity = entities.find(letter);
    safe += entity == entities.end() ? std::string(1, letter) : entity->second;
  }
  return safe;
}

}  // namespace

std::string svg(const BarChart& chart) {
  double most = 0;
  double least = 0;
  for (const Bar& bar : chart.bars) {
    most = std::max(most, bar.value);
    least = bar.value > 0 && (least == 0 || bar.value < least) ? bar.value : least;
  }
  const bool log = least > 0 && most > kLogFrom * least;
  const auto length = [&](double value) {
    if (value <= 0 || most <= 0) {
      return 0.0;
    }
    const double share =
        log ? std::log(2 * value / least) / std::log(2 * most / least) : value / most;
    return share * (kWidth - kNames - kLabels);
  };
  const double height = kTop + kRow * static_cast<double>(chart.bars.size()) + 16;
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"sans-serif\" font-size=\"13\" role=\"img\">\n"
      "<title>{2}</title>\n<desc>{3}</desc>\n<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n"
      "<text x=\"16\" y=\"26\" font-size=\"16\" font-weight=\"bold\">{2}</text>\n"
      "<text x=\"16\" y=\"46\" fill=\"#555\">{3}{4}</text>\n",
      kWidth,
      height,
      escaped(chart.title),
      escaped(chart.description),
      log ? "; log scale" : "");
  double y = kTop;
  for (const Bar& bar : chart.bars) {
    text += fmt::format(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n"
        "<rect x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\" stroke=\"#2a6fbb\"/>\n"
        "<text x=\"{:.1f}\" y=\"{}\">{}</text>\n",
        kNames - 8,
        y + 16,
        escaped(bar.name),
        kNames,
        y + 3,
        length(bar.value),
        kRow - 8,
        bar.hollow ? "none" : "#2a6fbb",
        kNames + length(bar.value) + 8,
        y + 16,
        escaped(bar.label));
    y += kRow;
  }
  return text + "</svg>\n";
}

}  // namespace paradyse
