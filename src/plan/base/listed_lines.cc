#include "src/plan/base/listed_lines.h"

#include <algorithm>
#include <stdexcept>

#include "src/plan/base/disk_file.h"

namespace paradyse {

std::string ListedLine::place() const {
  return number == 0 ? source : source + ", line " + std::to_string(number);
}

std::string listed_name(const std::filesystem::path& file) {
  return file == "-" ? "/dev/stdin" : file.string();
}

bool next_line(std::streambuf& text, ListedLine& line) {
  using Traits = std::streambuf::traits_type;
  line.text.clear();
  ++line.number;
  auto next = text.sbumpc();
  const bool is_one = !Traits::eq_int_type(next, Traits::eof());
  for (; !Traits::eq_int_type(next, Traits::eof()); next = text.sbumpc()) {
    const char letter = Traits::to_char_type(next);
    if (letter == '\n') {
      break;
    }
    if (line.text.size() == kMostLine) {
      throw std::invalid_argument(
          line.place() + ": has more than " + std::to_string(kMostLine) +
          " bytes; is it a list with one entry a line?");
    }
    line.text.push_back(letter);
  }
  return is_one;
}

ListedLines::ListedLines(const std::filesystem::path& file, const char* advice)
    : text_(content_of_named(listed_name(file), advice), listed_name(file)) {
  line_.source = listed_name(file);
}

const ListedLine* ListedLines::next() {
  constexpr const char* kBlanks = " \t\r";
  while (next_line(text_, line_)) {
    if (line_.text.find('\0') != std::string::npos) {
      throw std::invalid_argument(
          line_.place() + ": has a NUL byte: the file was damaged, or is UTF-16");
    }
    const std::size_t begin = line_.text.find_first_not_of(kBlanks);
    if (begin != std::string::npos) {
      line_.text.erase(line_.text.find_last_not_of(kBlanks) + 1);
      line_.text.erase(0, begin);
      return &line_;
    }
  }
  return nullptr;
}

std::vector<std::string_view> words_of(std::string_view line) {
  constexpr std::string_view kBetween = " \t\r,";
  std::vector<std::string_view> words;
  for (std::size_t at = line.find_first_not_of(kBetween); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kBetween, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(kBetween, end);
  }
  return words;
}

}  // namespace paradyse
