#include "src/cli/progress.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "paradyse/run/accountant.h"
#include "src/plan/base/bytes_text.h"

namespace paradyse::cli {

std::string strategies_text(const StepReport& report) {
  std::string text;
  for (const auto& [name, count] : report.micro_batches) {
    if (!text.empty()) {
      text += " | ";
    }
    text += fmt::format("{} x{}", name, count);
  }
  return text;
}

std::string bar(std::int64_t done, std::int64_t of) {
  constexpr std::int64_t kWidth = 20;
  const std::int64_t full = of <= 0 ? 0 : kWidth * std::clamp<std::int64_t>(done, 0, of) / of;
  return fmt::format("[{:#<{}}{:.<{}}]", "", full, "", kWidth - full);
}

Progress::Progress() : terminal_(isatty(STDERR_FILENO) == 1) {}

void Progress::show(const ProfileProgress& now) {
  draw(
      now.probes,
      now.of,
      fmt::format(
          "profile: {} of {} measured, {:.0f} of at most {:.0f} s  {}",
          now.probes,
          now.of,
          now.seconds,
          now.seconds_of,
          now.what));
}

void Progress::show(std::int64_t done, std::int64_t of, const std::string& what) {
  draw(done, of, what);
}

void Progress::show(const StepReport& report) {
  const double now = static_cast<double>(report.tokens) / report.seconds;
  tokens_per_s_ = tokens_per_s_ == 0 ? now : 0.8 * tokens_per_s_ + 0.2 * now;
  const std::string facts = fmt::format(
      "step {}/{}  loss {:.4f}  {:.0f} tokens/s  peak {}  switch {:.1f} ms ({:.1f} %)  {}",
      report.step,
      report.steps,
      report.loss,
      tokens_per_s_,
      bytes_text(report.peak_bytes),
      1e3 * report.switching_seconds,
      100 * report.switching_seconds / report.seconds,
      strategies_text(report));
  if (!terminal_) {
    if (report.step == 1 || report.step == report.steps || report.step % 10 == 0) {
      std::fprintf(stderr, "%s\n", facts.c_str());
    }
    return;
  }
  draw(report.step, report.steps, facts);
}

void Progress::draw(std::int64_t done_of, std::int64_t all, const std::string& facts) {
  if (!terminal_) {
    return;
  }
  std::string line = bar(done_of, all) + " " + facts;
  winsize window{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1 &&
      line.size() >= window.ws_col) {
    line.resize(window.ws_col - 1U);
  }
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
  std::fflush(stderr);
  open_ = true;
}

void Progress::finish() {
  if (open_) {
    std::fputc('\n', stderr);
    open_ = false;
  }
}

}  // namespace paradyse::cli
