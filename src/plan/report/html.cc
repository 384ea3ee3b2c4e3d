// The page of a report.  Its charts: svg.h; its looks: style.h; its numbers: totals.h.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>

#include "src/plan/base/bytes_text.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/report/page_text.h"
#include "src/plan/report/style.h"
#include "src/plan/report/svg.h"
#include "src/plan/report/totals.h"

namespace paradyse {
namespace {

constexpr const char* kMark = "<!-- paradyse-report 1 -->";  // by which we know our pages again
constexpr const char* kDash = "\u2013";
constexpr const char* kTimes = "\u00d7";

// --- words and tables ----------------------------------------------------------------------------

std::string count_of(std::size_t count, const std::string& noun) {
  return whole(static_cast<std::int64_t>(count)) + " " + noun + (count == 1 ? "" : "s");
}

std::string heading(const std::string& text) { return "<h3>" + escaped(text) + "</h3>\n"; }
std::string note(const std::string& text) { return "<p class=\"note\">" + text + "</p>\n"; }
std::string small(const std::string& text) { return "<small>" + text + "</small>"; }

// A cell; `content` is HTML.
std::string cell(const std::string& content, const std::string& style = "") {
  return "<td" + (style.empty() ? "" : " class=\"" + style + "\"") + ">" + content + "</td>";
}

std::string head(const std::string& content, const std::string& attributes = "") {
  return "<th scope=\"col\"" + (attributes.empty() ? "" : " " + attributes) + ">" + content +
         "</th>";
}

std::string row_of(const SwitchingRun& run, const std::string& cells) {
  return std::string("<tr") + (run.kind == "ours" ? " class=\"ours\"" : "") +
         "><th scope=\"row\">" + escaped(run.name) + "</th>" + cells + "</tr>\n";
}

// Narrow screens scroll it sideways, also by keyboard.
std::string table(
    const std::string& label, const std::string& head_rows, const std::string& body_rows) {
  return "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"" + escaped(label) +
         "\">\n<table>\n<thead>\n" + head_rows + "</thead>\n<tbody>\n" + body_rows +
         "</tbody>\n</table>\n</div>\n";
}

// --- what a corpus is compared by ----------------------------------------------------------------

struct Bin {
  std::int64_t low = 0;  // longest document of a step, from `low` to below `high`
  std::int64_t high = 0;
  StepNumbers steps;
};

std::string text_of(const Bin& bin) {
  return tokens_text(bin.low) + "\u2013" + tokens_text(bin.high);
}

// Steps by the power of 4 beneath their longest document.
std::vector<Bin> bins_of(const SwitchingRun& run) {
  std::map<int, StepNumbers> by_power;
  for (std::size_t i = 0; i < run.steps.size(); ++i) {
    int power = 0;
    for (std::int64_t rest = run.steps[i].longest; rest >= 4; rest /= 4) {
      ++power;
    }
    by_power[power].push_back(i);
  }
  std::vector<Bin> bins;
  for (auto& [power, steps] : by_power) {
    const auto low = std::int64_t{1} << (2 * power);
    constexpr int kLast = 31;  // 4^31 is the last power of 4
    bins.push_back(
        {.low = low, .high = power < kLast ? low * 4 : INT64_MAX, .steps = std::move(steps)});
  }
  return bins;
}

// Steps from the shortest longest document to the longest.
StepNumbers by_length(const SwitchingRun& run) {
  StepNumbers order(run.steps.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return run.steps[a].longest < run.steps[b].longest;
  });
  return order;
}

// All that the parts of a corpus' section share.
struct Section {
  const SwitchingCorpus& corpus;
  std::string id;
  const SwitchingRun* best;     // of the static runs: best_static(); or nullptr
  const SwitchingRun* metp;     // static METP, or nullptr
  StepNumbers common;           // that every static run fits
  const SwitchingRun* fastest;  // of the static runs on those, or nullptr
  StepNumbers order;            // by length
  std::vector<Bin> bins;
  std::vector<std::string> styles;  // of each run's line
};

// Ours in the first colour, each static run in one of its own, the publication in black (or white).
std::vector<std::string> styles_of(const SwitchingCorpus& corpus) {
  constexpr std::size_t kColours = 7;  // besides the first
  std::map<std::string, std::size_t> seen;
  std::vector<std::string> styles;
  for (const SwitchingRun& run : corpus.runs) {
    const std::size_t number = seen[run.kind]++;
    const std::string colour = run.kind == "published" && number == 0 ? "ink"
                               : run.kind == "ours" && number == 0
                                   ? "c0"
                                   : "c" + std::to_string(1 + number % kColours);
    const std::size_t turn = run.kind == "static" ? number / kColours : 0;  // of the colours
    styles.push_back(
        "k-" + run.kind + " " + colour +
        (turn == 0   ? ""
         : turn == 1 ? " again"
                     : " once-more"));
  }
  return styles;
}

// Of the static runs the fastest on these steps, which all of them fit; nullptr: no such steps.
const SwitchingRun* fastest_static(const SwitchingCorpus& corpus, const StepNumbers& common) {
  const SwitchingRun* fastest = nullptr;
  for (const SwitchingRun& run : corpus.runs) {
    if (run.kind == "static" && fits_all(run, common) &&
        (fastest == nullptr || total(run, common).median < total(*fastest, common).median)) {
      fastest = &run;
    }
  }
  return fastest;
}

Section section_of(const SwitchingCorpus& corpus, std::size_t number) {
  const std::string best = best_static(corpus);
  const StepNumbers common = common_steps(corpus);
  const auto metp = std::find_if(corpus.runs.begin(), corpus.runs.end(), [](const auto& run) {
    return run.kind == "static" && run.name.find("METP") != std::string::npos;
  });
  return {
      .corpus = corpus,
      .id = "corpus-" + std::to_string(number + 1),
      .best = best.empty() ? nullptr : run_named(corpus, best),
      .metp = metp == corpus.runs.end() ? nullptr : &*metp,
      .common = common,
      .fastest = fastest_static(corpus, common),
      .order = by_length(corpus.runs.front()),
      .bins = bins_of(corpus.runs.front()),
      .styles = styles_of(corpus)};
}

// Seconds of `run` against those of `other` over these steps, which both fit.
double ratio(const SwitchingRun& run, const SwitchingRun& other, const StepNumbers& steps) {
  return total(run, steps).median / total(other, steps).median;
}

std::string title_of(const SwitchingCorpus& corpus) {
  return corpus.name + ", " + corpus.order + (corpus.packed ? ", packed" : "");
}

// --- charts --------------------------------------------------------------------------------------

// A line's points end before the first step that does not fit.
struct Course {
  std::vector<ChartPoint> points;
  bool cut = false;
};

// After each step the median over the repeats of what was spent up to there: the last point is
// total().
Course cumulative(const Section& section, const SwitchingRun& run) {
  Course course;
  std::vector<double> spent;
  for (const std::size_t i : section.order) {
    const SwitchingStep& step = run.steps[i];
    if (!step.fits) {
      course.cut = true;
      break;
    }
    spent.resize(
        course.points.empty() ? step.seconds.size() : std::min(spent.size(), step.seconds.size()));
    for (std::size_t repeat = 0; repeat < spent.size(); ++repeat) {
      spent[repeat] += step.seconds[repeat];
    }
    course.points.push_back({.x = static_cast<double>(step.longest), .y = median(spent)});
  }
  return course;
}

// Medians of steps of about the same length: four groups from a length to its double.
Course each_step(const Section& section, const SwitchingRun& run) {
  constexpr double kGroups = 4;
  std::map<int, std::pair<std::vector<double>, std::vector<double>>> groups;
  Course course;
  for (const std::size_t i : section.order) {
    const SwitchingStep& step = run.steps[i];
    if (!step.fits) {
      course.cut = true;
      break;
    }
    const auto length = static_cast<double>(step.longest);
    auto& [lengths, seconds] = groups[static_cast<int>(std::floor(std::log2(length) * kGroups))];
    lengths.push_back(length);
    seconds.push_back(median(step.seconds));
  }
  for (const auto& [number, group] : groups) {
    course.points.push_back({.x = median(group.first), .y = median(group.second)});
  }
  return course;
}

LineChart chart_of(
    const Section& section, Course (*course_of)(const Section&, const SwitchingRun&)) {
  LineChart chart;
  const auto add = [&](bool ours) {  // ours above the others
    for (std::size_t i = 0; i < section.corpus.runs.size(); ++i) {
      const SwitchingRun& run = section.corpus.runs[i];
      if ((run.kind == "ours") == ours) {
        Course course = course_of(section, run);
        chart.lines.push_back(
            {.name = run.name,
             .style = section.styles[i],
             .points = std::move(course.points),
             .cut = course.cut});
      }
    }
  };
  add(false);
  add(true);
  return chart;
}

std::string chart_notes(const Section& section, const LineChart& chart) {
  std::string notes;
  const bool sorted = std::is_sorted(section.order.begin(), section.order.end());
  if (!sorted) {
    notes +=
        "The steps ran in another order; here they stand by the length of their longest document. ";
  }
  std::string none;
  bool cut = false;
  for (const ChartLine& line : chart.lines) {
    if (line.points.empty()) {
      none += (none.empty() ? "" : ", ") + escaped(line.name);
    }
    cut = cut || (line.cut && !line.points.empty());
  }
  if (cut) {
    notes += std::string("A line that ends in ") + kTimes +
             " ends before the first step that does not fit into memory. ";
  }
  if (!none.empty()) {
    notes += "Without a line, since they do not fit even the shortest step: " + none + ". ";
  }
  const auto has = [&](const char* kind) {
    return std::any_of(
        section.corpus.runs.begin(), section.corpus.runs.end(), [&](const auto& run) {
          return run.kind == kind;
        });
  };
  notes += std::string(has("published") ? "Dashed: as published. " : "") +
           (has("ablation") ? "Dotted: with something left out. " : "") + "K = 1,024 tokens.";
  return note(notes);
}

std::string charts(const Section& section) {
  LineChart cumulated = chart_of(section, cumulative);
  cumulated.id = section.id + "-cumulative";
  cumulated.title = "Cumulative seconds by document length, " + title_of(section.corpus);
  cumulated.description =
      "One line a run: seconds spent on all steps up to a length. The tables below have the sums.";
  cumulated.x_label = section.corpus.packed ? "longest document of a step, tokens (log scale)"
                                            : "document length, tokens (log scale)";
  cumulated.y_label = "seconds spent up to this length, median of the repeats";
  cumulated.height = 400;

  LineChart each = chart_of(section, each_step);
  each.id = section.id + "-step";
  each.title = "Seconds a step by document length, " + title_of(section.corpus);
  each.description = "One line a run: median seconds of a step of about this length.";
  each.x_label = cumulated.x_label;
  each.y_label = "seconds a step (log scale), median of steps of about this length";
  each.log_y = true;
  each.height = 300;

  return heading("Cumulative time") + "<div class=\"scroll\">\n" + svg(cumulated) + "</div>\n" +
         chart_notes(section, cumulated) + heading("Time of a step") + "<div class=\"scroll\">\n" +
         svg(each) + "</div>\n";
}

// --- tables --------------------------------------------------------------------------------------

std::string spread_cells(const Spread& spread, const std::string& style) {
  return cell(figures(spread.median), style) +
         cell(figures(spread.least) + "\u2013" + figures(spread.most));
}

// On the steps that both fit, and on how many where those are not all.
std::string ratio_cell(const SwitchingRun& run, const SwitchingRun& other) {
  const StepNumbers both = shared(fitting_steps(run), fitting_steps(other));
  if (both.empty()) {
    return cell(kDash);
  }
  const std::string on =
      both.size() == run.steps.size() ? "" : " " + small("on " + std::to_string(both.size()));
  return cell(decimals(ratio(run, other, both), 3) + on);
}

// Each distinct run once, with what it is.
using Bases = std::vector<std::pair<const char*, const SwitchingRun*>>;

Bases bases_of(const char* what, const SwitchingRun* best, const SwitchingRun* metp) {
  Bases bases;
  if (best != nullptr) {
    bases.emplace_back(what, best);
  }
  if (metp != nullptr && metp != best) {
    bases.emplace_back("", metp);
  }
  return bases;
}

std::string group_of(const Bases& bases) {
  std::string heads = head("seconds", "class=\"edge\"") + head("least\u2013most");
  for (const auto& [what, base] : bases) {
    heads += head(std::string("\u00f7 ") + what + "<br/>" + escaped(base->name));
  }
  return heads;
}

std::string span_of(const Bases& bases, std::size_t more = 0) {
  return "class=\"group edge\" colspan=\"" + std::to_string(2 + more + bases.size()) + "\"";
}

std::string totals(const Section& section) {
  const Bases all_bases = bases_of("best static,", section.best, section.metp);
  const Bases common_bases = bases_of("fastest,", section.fastest, section.metp);
  const std::string heads =
      "<tr><td></td><td></td>" + head("all steps that fit", span_of(all_bases, 1)) +
      head(
          "the " + count_of(section.common.size(), "step") + " that every static run fits",
          span_of(common_bases)) +
      "</tr>\n<tr>" + head("run") + head("steps that fit") + group_of(all_bases) +
      head("over the fastest<br/>of each step") + group_of(common_bases) + "</tr>\n";
  std::string rows;
  const std::vector<SwitchingSummary> all = summaries(section.corpus);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const SwitchingRun& run = section.corpus.runs[i];
    const SwitchingSummary& summary = all[i];
    std::string cells = cell(whole(summary.steps_that_fit) + " of " + whole(summary.steps));
    if (summary.steps_that_fit == 0) {
      cells += cell(kDash, "edge") + cell(kDash);
    } else {
      cells += spread_cells(
          {.median = summary.seconds, .least = summary.least, .most = summary.most}, "edge");
    }
    for (const auto& [what, base] : all_bases) {
      cells += ratio_cell(run, *base);
    }
    cells += cell(
        std::isnan(summary.over_fastest) ? kDash : decimals(100 * summary.over_fastest, 1) + " %");
    const bool comparable = !std::isnan(summary.seconds_on_common);
    cells += comparable ? spread_cells(
                              {.median = summary.seconds_on_common,
                               .least = summary.common_least,
                               .most = summary.common_most},
                              "edge")
                        : cell(kDash, "edge") + cell(kDash);
    for (const auto& [what, base] : common_bases) {
      cells += cell(comparable ? decimals(ratio(run, *base, section.common), 3) : kDash);
    }
    rows += row_of(run, cells);
  }
  std::string notes =
      "Seconds without planning: the median over the repeats of the sum over steps, with the least "
      "and the most. \u00f7: divided by the seconds of that run; below 1 is less time; \u201con "
      "n\u201d: over the n steps that both fit.  Over the fastest of each step: what better "
      "choices among these runs would gain, the fastest picked on every second repeat and judged "
      "on "
      "the others, both ways; with one repeat it is not said. Runs that plan a step alike share "
      "its measurement.";
  if (section.best != nullptr) {
    notes += " Best static run: of those that fit the most steps the fastest.";
  }
  return heading("Totals") + table("Totals of " + title_of(section.corpus), heads, rows) +
         note(notes);
}

std::string by_bin(const Section& section) {
  std::string heads = "<tr>" + head("run");
  for (const Bin& bin : section.bins) {
    heads += head(text_of(bin) + "<br/>" + small(count_of(bin.steps.size(), "step")));
  }
  // Of the runs that fit the whole bin the least.
  std::vector<double> least;
  for (const Bin& bin : section.bins) {
    least.push_back(INFINITY);
    for (const SwitchingRun& run : section.corpus.runs) {
      if (fits_all(run, bin.steps)) {
        least.back() = std::min(least.back(), total(run, bin.steps).median);
      }
    }
  }
  std::string rows;
  for (const SwitchingRun& run : section.corpus.runs) {
    const StepNumbers fitting = fitting_steps(run);
    std::string cells;
    for (std::size_t b = 0; b < section.bins.size(); ++b) {
      const StepNumbers steps = shared(section.bins[b].steps, fitting);
      const std::size_t count = section.bins[b].steps.size();
      if (steps.empty()) {
        cells += cell(kDash);
        continue;
      }
      const double seconds = total(run, steps).median;
      if (steps.size() < count) {
        cells += cell(
            figures(seconds) + " " +
            small("for " + std::to_string(steps.size()) + " of " + std::to_string(count)));
      } else if (seconds <= least[b]) {
        cells += cell("<b>" + figures(seconds) + "</b>");
      } else {
        cells += cell(figures(seconds));
      }
    }
    rows += row_of(run, cells);
  }
  return heading("Seconds by length") +
         table("Seconds by length of " + title_of(section.corpus), heads + "</tr>\n", rows) +
         note(
             "Tokens of the longest document of a step. In bold the least of the runs that fit all "
             "steps of the column; \u201cfor m of n\u201d: only m of its n steps fit.");
}

std::string error_cells(const PredictionError& error) {
  return cell(percent(error.absolute), "edge") + cell(signed_percent(error.mean)) +
         cell(signed_percent(error.worst));
}

std::string predictions(const Section& section) {
  const std::string group = head("mean off by", "class=\"edge\"") + head("mean") + head("worst");
  const std::string heads = "<tr><td></td><td></td><td></td>" +
                            head("predicted seconds", "class=\"group edge\" colspan=\"3\"") +
                            head("predicted peak memory", "class=\"group edge\" colspan=\"3\"") +
                            "</tr>\n<tr>" + head("run") + head("planning, seconds") +
                            head("highest peak") + group + group + "</tr>\n";
  std::string rows;
  for (const SwitchingRun& run : section.corpus.runs) {
    double planning = 0;
    std::int64_t peak = 0;
    for (const SwitchingStep& step : run.steps) {
      planning += step.planning_seconds;
      peak = std::max(peak, step.peak_bytes);
    }
    rows += row_of(
        run,
        cell(figures(planning, 3)) + cell(peak > 0 ? bytes_text(peak) : kDash) +
            error_cells(time_error(run)) + error_cells(memory_error(run)));
  }
  return heading("Predictions, planning and memory") +
         table("Prediction errors of " + title_of(section.corpus), heads, rows) +
         note(
             "Predicted / measured \u2212 1 over the steps that fit: the mean of its absolute "
             "values, its mean (above 0: predicted too much) and the one farthest from 0. Planning "
             "is the sum over all steps; peaks are of the fullest rank.");
}

// Which programs a run chose in a bin, the most frequent first.
std::vector<std::pair<std::string, std::size_t>> choices_in(
    const SwitchingRun& run, const StepNumbers& steps) {
  std::map<std::string, std::size_t> times;
  for (const std::size_t i : steps) {
    for (const std::string& program : run.steps[i].programs) {
      ++times[program];
    }
  }
  std::vector<std::pair<std::string, std::size_t>> choices(times.begin(), times.end());
  std::stable_sort(choices.begin(), choices.end(), [](const auto& a, const auto& b) {
    return a.second > b.second;
  });
  return choices;
}

std::string choice_rows(const SwitchingRun& run, const Bin& bin) {
  constexpr std::size_t kMost = 8;  // rows of one length
  auto choices = choices_in(run, bin.steps);
  std::size_t all = 0;
  for (const auto& [program, times] : choices) {
    all += times;
  }
  if (choices.size() > kMost) {
    std::size_t rest = 0;
    for (std::size_t i = kMost - 1; i < choices.size(); ++i) {
      rest += choices[i].second;
    }
    const std::size_t others = choices.size() - (kMost - 1);
    choices.resize(kMost - 1);
    choices.emplace_back(count_of(others, "other program"), rest);
  }
  std::string rows;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const double share = static_cast<double>(choices[i].second) / static_cast<double>(all);
    rows += "<tr>";
    if (i == 0) {
      rows += "<th scope=\"rowgroup\" rowspan=\"" + std::to_string(choices.size()) + "\">" +
              text_of(bin) + "</th>";
    }
    rows += cell(escaped(choices[i].first), "text wide") +
            cell(whole(static_cast<std::int64_t>(choices[i].second))) +
            cell(decimals(100 * share, 0) + " %") +
            cell(
                "<span class=\"share\" aria-hidden=\"true\"><span style=\"width:" +
                    decimals(100 * share, 1) + "%\"></span></span>",
                "text") +
            "</tr>\n";
  }
  return rows;
}

std::string choices(const Section& section) {
  std::string out;
  for (const SwitchingRun& run : section.corpus.runs) {
    if (run.kind != "ours") {
      continue;
    }
    std::string rows;
    for (const Bin& bin : section.bins) {
      rows += choice_rows(run, bin);
    }
    if (rows.empty()) {
      continue;
    }
    out += heading("What " + run.name + " chose") +
           table(
               "Programs that " + run.name + " chose by length, " + title_of(section.corpus),
               "<tr>" + head("tokens") + head("layers of a micro-batch", "class=\"text\"") +
                   head("times") + head("share", "colspan=\"2\" class=\"text\"") + "</tr>\n",
               rows);
  }
  return out;
}

// --- the page ------------------------------------------------------------------------------------

std::string against(const SwitchingRun& run, const SwitchingRun& other, const StepNumbers& steps) {
  const double part = ratio(run, other, steps) - 1;
  constexpr double kSame = 0.0005;
  if (std::abs(part) < kSame) {
    return "as much as " + escaped(other.name);
  }
  return percent(std::abs(part)) + (part < 0 ? " less than " : " more than ") +
         escaped(other.name) + " (" + figures(total(other, steps).median) + " s)";
}

// What a reader in a hurry has to know: a line for each run of ours.
std::string in_short(const Section& section) {
  std::string lines;
  for (const SwitchingRun& run : section.corpus.runs) {
    if (run.kind != "ours") {
      continue;
    }
    const StepNumbers fitting = fitting_steps(run);
    std::string line = "<b>" + escaped(run.name) + "</b> fits " + std::to_string(fitting.size()) +
                       " of " + count_of(run.steps.size(), "step");
    if (section.best == nullptr) {
      lines += "<li>" + line + "; no static run fits a step.</li>\n";
      continue;
    }
    const StepNumbers theirs = fitting_steps(*section.best);
    line += "; the best static run, " + escaped(section.best->name) + ", fits " +
            std::to_string(theirs.size()) + ".";
    const auto compare =
        [&](const StepNumbers& steps, const SwitchingRun& other, const std::string& which) {
          if (!steps.empty()) {
            line += " On the " + count_of(steps.size(), "step") + " that " + which + " it takes " +
                    figures(total(run, steps).median) + " s, " + against(run, other, steps) + ".";
          }
        };
    compare(shared(fitting, theirs), *section.best, "both fit");
    if (section.metp != nullptr && section.metp != section.best) {
      compare(
          shared(fitting, fitting_steps(*section.metp)),
          *section.metp,
          escaped(section.metp->name) + " fits, too,");
    }
    if (section.fastest != nullptr && section.fastest != section.best &&
        fits_all(run, section.common)) {
      compare(section.common, *section.fastest, "every static run fits");
    }
    lines += "<li>" + line + "</li>\n";
  }
  return lines.empty() ? "" : "<ul>\n" + lines + "</ul>\n";
}

std::string facts_of(const SwitchingCorpus& corpus) {
  if (corpus.runs.empty() || corpus.runs.front().steps.empty()) {
    return note("Nothing was measured.");
  }
  const SwitchingRun& first = corpus.runs.front();
  std::vector<double> lengths;
  std::int64_t tokens = 0;
  std::size_t repeats = 0;
  for (const SwitchingStep& step : first.steps) {
    lengths.push_back(static_cast<double>(step.longest));
    tokens += step.tokens;
  }
  for (const SwitchingRun& run : corpus.runs) {
    repeats = std::max(repeats, sums(run, {}).size());
  }
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  const std::string document =
      corpus.packed ? "the longest document of a step has " : "documents of ";
  return note(
      count_of(first.steps.size(), "step") + ", " + escaped(corpus.order) + ", " +
      (corpus.packed ? "documents packed, " : "one document each, ") + whole(tokens) + " tokens; " +
      document + decimals(*least, 0) + " to " + decimals(*most, 0) + " tokens, median " +
      decimals(median(lengths), 0) + "; " + count_of(repeats, "repeat") + " of each step.");
}

std::string section(const SwitchingCorpus& corpus, std::size_t number) {
  std::string out = "<section aria-labelledby=\"corpus-" + std::to_string(number + 1) +
                    "\">\n<h2 id=\"corpus-" + std::to_string(number + 1) + "\">" +
                    escaped(title_of(corpus)) + "</h2>\n" + facts_of(corpus);
  if (!corpus.runs.empty() && !corpus.runs.front().steps.empty()) {
    const Section shown = section_of(corpus, number);
    out += in_short(shown) + charts(shown) + totals(shown) + by_bin(shown) + predictions(shown) +
           choices(shown);
  }
  return out + "</section>\n";
}

std::string longest(const SwitchingResult& result) {
  if (result.longest.empty()) {
    return "";
  }
  // A run is what the first corpus that has it says.
  const auto kind_of = [&](const std::string& name) -> std::string {
    for (const SwitchingCorpus& corpus : result.corpora) {
      if (const SwitchingRun* run = run_named(corpus, name)) {
        return run->kind;
      }
    }
    return name.starts_with("static") ? "static" : "";
  };
  const LongestDocument* best = nullptr;
  for (const LongestDocument& one : result.longest) {
    if (kind_of(one.run) == "static" && (best == nullptr || one.tokens > best->tokens)) {
      best = &one;
    }
  }
  const bool known = best != nullptr && best->tokens > 0;
  std::string rows;
  for (const LongestDocument& one : result.longest) {
    const SwitchingRun run{.name = one.run, .kind = kind_of(one.run), .steps = {}};
    rows += row_of(
        run,
        cell(whole(one.tokens)) +
            cell(
                known ? decimals(
                            static_cast<double>(one.tokens) / static_cast<double>(best->tokens), 2)
                      : kDash));
  }
  return "<section aria-labelledby=\"longest\">\n<h2 id=\"longest\">Longest document</h2>\n" +
         table(
             "Longest document that each run fits",
             "<tr>" + head("run") + head("tokens") + head("\u00f7 longest of a static run") +
                 "</tr>\n",
             rows) +
         note(
             "Tokens of the longest document that a run can train on within " +
             (result.memory_per_rank > 0 ? bytes_text(result.memory_per_rank) + " a rank."
                                         : "the memory that there is.") +
             (known ? " Of the static runs " + escaped(best->run) + " takes the longest." : "")) +
         "</section>\n";
}

// How wrong the costs were that runs planned by, where they had not measured.
std::string held_out(const SwitchingResult& result) {
  if (result.errors.empty()) {
    return "";
  }
  using Range = std::pair<std::string, bool>;  // model, beyond
  std::vector<std::string> order;
  std::map<std::string, std::map<Range, const HeldOutError*>> rows;
  for (const HeldOutError& error : result.errors) {
    const std::string part = (error.part.empty()     ? "all parts"
                              : error.part == "step" ? "whole step"
                                                     : error.part) +
                             (error.strategy.empty() ? "" : ", " + error.strategy) +
                             (error.ranks == 0 ? "" : ", groups of " + std::to_string(error.ranks));
    if (!rows.contains(part)) {
      order.push_back(part);
    }
    rows[part][{error.model, error.beyond}] = &error;
  }
  std::string groups = "<tr><td></td>";
  std::string heads = "<tr>" + head("part");
  std::vector<Range> ranges;
  for (const char* model : {"structured", "hybrid"}) {
    for (const bool beyond : {false, true}) {
      ranges.emplace_back(model, beyond);
      groups += head(
          std::string(model) + (beyond ? ", beyond" : ", inside"),
          "class=\"group edge\" colspan=\"2\"");
      heads += head("mean", "class=\"edge\"") + head("worst");
    }
  }
  std::string body;
  for (const std::string& part : order) {
    body += "<tr><th scope=\"row\">" + escaped(part) + "</th>";
    for (const Range& range : ranges) {
      const auto found = rows[part].find(range);
      const bool known = found != rows[part].end();
      body += cell(known ? percent(found->second->mean) : kDash, "edge") +
              cell(known ? percent(found->second->worst) : kDash);
    }
    body += "</tr>\n";
  }
  return "<section aria-labelledby=\"held-out\">\n<h2 id=\"held-out\">Errors of the costs on "
         "lengths "
         "left out</h2>\n" +
         table(
             "Errors of the costs on lengths left out",
             groups + "</tr>\n" + heads + "</tr>\n",
             body) +
         note(
             "Predicted seconds (of peak memory: bytes) off the measured ones, of the profile that "
             "plans went by. Inside: each profiled length left out of the fit in turn; beyond: "
             "lengths up to four times those fitted.") +
         "</section>\n";
}

std::string fact(const std::string& name, const std::string& value) {
  return "<dt>" + name + "</dt><dd>" + escaped(value.empty() ? kDash : value) + "</dd>\n";
}

std::string contents(const SwitchingResult& result) {
  std::string items;
  for (std::size_t i = 0; i < result.corpora.size(); ++i) {
    items += "<li><a href=\"#corpus-" + std::to_string(i + 1) + "\">" +
             escaped(title_of(result.corpora[i])) + "</a></li>\n";
  }
  if (!result.longest.empty()) {
    items += "<li><a href=\"#longest\">Longest document</a></li>\n";
  }
  if (!result.errors.empty()) {
    items += "<li><a href=\"#held-out\">Errors of the costs on lengths left out</a></li>\n";
  }
  return items.empty() ? "" : "<nav aria-label=\"Contents\">\n<ul>\n" + items + "</ul>\n</nav>\n";
}

}  // namespace

std::string html_report(const SwitchingResult& result) {
  std::string out = std::string("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n") + kMark +
                    "\n<meta charset=\"utf-8\"/>\n"
                    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
                    "<meta name=\"color-scheme\" content=\"light dark\"/>\n"
                    "<title>ParaDySe: switching, " +
                    escaped(result.model) + "</title>\n<style>" + kReportStyle +
                    "</style>\n</head>\n<body>\n<header>\n<h1>Switching strategies by document "
                    "length</h1>\n<dl class=\"facts\">\n";
  out += fact("Model", result.model) + fact("Machine", result.machine) +
         fact("Backend", result.backend) + fact("Ranks", std::to_string(result.ranks)) +
         fact(
             "Memory of a rank",
             result.memory_per_rank > 0 ? bytes_text(result.memory_per_rank) : "no limit") +
         fact("Costs", result.costs) + "</dl>\n";
  out += "<pre tabindex=\"0\" aria-label=\"The command that reproduces this\"><code>" +
         escaped(result.command) + "</code></pre>\n" + contents(result) + "</header>\n<main>\n";
  for (std::size_t i = 0; i < result.corpora.size(); ++i) {
    out += section(result.corpora[i], i);
  }
  if (result.corpora.empty()) {
    out += note("No corpus was measured.");
  }
  return out + longest(result) + held_out(result) + "</main>\n</body>\n</html>\n";
}

void write_html_report(const SwitchingResult& result, const std::filesystem::path& file) {
  constexpr std::size_t kHead = 200;
  if (file.has_parent_path() && !std::filesystem::is_directory(file.parent_path())) {
    throw std::invalid_argument(
        file.string() + ": the folder " + file.parent_path().string() +
        " is not there; make it, or name another file with --out");
  }
  std::optional<std::string> there;
  try {
    there = content_of(file);
  } catch (const std::runtime_error& error) {
    throw std::invalid_argument(error.what());
  }
  if (there && !there->empty() && there->substr(0, kHead).find(kMark) == std::string::npos) {
    throw std::invalid_argument(
        file.string() +
        ": is there and is no report of paradyse, so it stays; name another file with --out, or "
        "move that one away");
  }
  replace_file(file, html_report(result));
}

}  // namespace paradyse
