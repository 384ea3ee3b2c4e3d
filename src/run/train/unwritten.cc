#include "src/run/train/unwritten.h"

#include <algorithm>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "src/run/train/files.h"

namespace paradyse {
namespace {

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    std::filesystem::create_directory(folder, error);
    if (error) {
      throw std::runtime_error(folder.string() + ": cannot be made: " + error.message());
    }
  }
}

}  // namespace

void Unwritten::put(const std::filesystem::path& file, std::string text) {
  take({.file = file, .text = std::move(text)});
}

void Unwritten::put_in_folder(const std::filesystem::path& file, std::string text) {
  take({.file = file, .text = std::move(text), .makes_folder = true});
}

void Unwritten::append(const std::filesystem::path& file, std::string text) {
  take({.file = file, .text = std::move(text), .appended = true});
}

void Unwritten::take(Text text) {
  const auto before = std::ranges::find(waiting_, text.file, &Text::file);
  if (before == waiting_.end()) {
    waiting_.push_back(std::move(text));
  } else if (text.appended) {
    before->text += text.text;
  } else {
    before->text = std::move(text.text);
  }
  std::size_t bytes = 0;
  const std::string why = flush();
  for (const Text& one : waiting_) {
    bytes += one.text.size();
  }
  if (bytes > kMostBytes) {
    throw std::runtime_error(
        fmt::format("{}; {} MiB of plans and metrics wait to be written", why, bytes >> 20U));
  }
}

std::string Unwritten::take_back(const std::filesystem::path& file) {
  const auto found = std::ranges::find(waiting_, file, &Text::file);
  if (found == waiting_.end()) {
    return "";
  }
  std::string text = std::move(found->text);
  waiting_.erase(found);
  return text;
}

std::string Unwritten::flush() {
  std::string first;
  std::erase_if(waiting_, [&](const Text& one) {
    try {
      if (one.makes_folder) {
        make_folder(one.file.parent_path());
      }
      if (one.appended) {
        append_text(one.file, one.text);
      } else {
        replace_text(one.file, one.text);
      }
      return true;
    } catch (const std::runtime_error& error) {
      first = first.empty() ? error.what() : first;
      return false;
    }
  });
  add_refused(first);
  return first;
}

}  // namespace paradyse
