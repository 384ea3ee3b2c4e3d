#include "src/cli/progress.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "paradyse/run/accountant.h"
#include "src/cli/tell.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/printable.h"
#include "src/plan/base/wrapped_text.h"

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

std::string duration_text(double seconds) {
  constexpr double kMinute = 60;
  constexpr double kHour = 3600;
  return seconds < 1.5 * kMinute ? fmt::format("{:.0f} s", seconds)
         : seconds < 1.5 * kHour ? fmt::format("{:.0f} min", seconds / kMinute)
                                 : fmt::format("{:.1f} h", seconds / kHour);
}

namespace {

constexpr double kSoon = 2;  // seconds: of what is shorter nothing is said

// Columns of the terminal; 0: it is none, or does not say.
std::size_t terminal_width() {
  winsize window{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1 ? window.ws_col : 0;
}

// As wide as the terminal, so that it can be wiped away.
void redraw(const std::string& facts) {
  std::string line = printable(facts);
  if (const std::size_t width = terminal_width(); width > 0 && line.size() >= width) {
    line.resize(width - 1);
  }
  std::fputs(("\r\033[K" + line).c_str(), stderr);
  std::fflush(stderr);
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

void say(const std::string& text_of_line) {
  const std::string line = printable(text_of_line);
  const std::size_t width = terminal_width();
  const std::string text = width == 0 ? line + "\n" : wrapped_text(line, "", width);
  std::fputs(text.c_str(), stderr);
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

ProgressHook Progress::hook(bool quiet) {
  if (quiet || !terminal_) {
    return {};
  }
  return
      [this](std::int64_t done, std::int64_t of, const std::string& what) { show(done, of, what); };
}

void Progress::show(const StepReport& report) {
  constexpr std::int64_t kStanding = 10;  // steps
  if (report.skipped) {
    const std::string facts = fmt::format("step {}/{}  skipped", report.step, report.steps);
    if (terminal_) {
      keep_ = true;
      draw(report.step, report.steps, facts);
    } else {
      tell("{}\n", facts);
    }
    return;
  }
  const double now = static_cast<double>(report.tokens) / report.seconds;
  tokens_per_s_ = tokens_per_s_ == 0 ? now : 0.8 * tokens_per_s_ + 0.2 * now;
  const std::string facts = fmt::format(
      "step {}/{}  loss {:.4f}  {}{:.0f} tokens/s  peak {}  switch {:.1f} ms ({:.1f} %)  {}",
      report.step,
      report.steps,
      report.loss,
      report.eval_loss ? fmt::format("held-out {:.4f}  ", *report.eval_loss) : "",
      tokens_per_s_,
      bytes_text(report.peak_bytes),
      1e3 * report.switching_seconds,
      100 * report.switching_seconds / report.seconds,
      strategies_text(report));
  const bool standing = report.step % kStanding == 0;
  if (!terminal_) {
    if (report.step == 1 || report.step == report.steps || standing || report.eval_loss) {
      tell("{}\n", facts);
    }
    return;
  }
  keep_ = true;
  draw(report.step, report.steps, facts);
  if (standing) {
    finish();
  }
}

void Progress::draw(std::int64_t done, std::int64_t of, const std::string& facts) {
  if (!terminal_) {
    return;
  }
  if (of != of_ || done < first_done_) {  // other work than before
    of_ = of;
    first_done_ = done;
    began_ = Clock::now();
  }
  std::string left;
  const double seconds = seconds_since(began_);
  if (done > first_done_ && done < of && seconds >= kSoon) {
    left = duration_text(
               seconds * static_cast<double>(of - done) / static_cast<double>(done - first_done_)) +
           " left  ";
  }
  redraw(bar(done, of) + " " + left + facts);
  open_ = true;
}

void Progress::finish() {
  if (open_) {
    std::fputs(keep_ ? "\n" : "\r\033[K", stderr);
    std::fflush(stderr);
    open_ = false;
    keep_ = false;
  }
}

struct Waiting::Clock {
  std::mutex mutex;
  std::condition_variable over;
  bool ended = false;
  std::thread thread;
};

Waiting::Waiting(const std::string& what, bool quiet) {
  if (quiet || isatty(STDERR_FILENO) != 1) {
    return;
  }
  clock_ = std::make_unique<Clock>();
  clock_->thread = std::thread([clock = clock_.get(), what] {
    const auto began = std::chrono::steady_clock::now();
    std::unique_lock lock(clock->mutex);
    while (!clock->over.wait_for(lock, std::chrono::seconds(1), [&] { return clock->ended; })) {
      if (const double seconds = seconds_since(began); seconds >= kSoon) {
        redraw(fmt::format("{}: {}", what, duration_text(seconds)));
      }
    }
    if (seconds_since(began) >= kSoon) {
      redraw("");
    }
  });
}

Waiting::~Waiting() {
  if (clock_) {
    {
      const std::lock_guard lock(clock_->mutex);
      clock_->ended = true;
    }
    clock_->over.notify_one();
    clock_->thread.join();
  }
}

}  // namespace paradyse::cli
