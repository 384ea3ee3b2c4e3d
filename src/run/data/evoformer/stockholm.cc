// Stockholm 1.0: alignments one after the other, each a header, rows and "//".
//
// Words.  A *block* is lines of rows up to an empty line; a row is what its name has in all blocks
// of the alignment.  *Markup* is a line that begins with "#="; that of columns (#=GC, #=GR) has a
// character for each column of its block.  Every block has every row once, all equally long.
// Columns that "#=GC MM" marks by an m are masked (HMMER's model mask); so are letters of a
// sequence that "#=GR name MM" marks likewise, where they are asked for.
#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "src/run/data/evoformer/alignment_formats.h"
#include "src/run/data/evoformer/alignment_rows.h"

namespace paradyse {
namespace {

constexpr std::string_view kBlanks = " \t";

// The next word of a line, and the rest after it.
std::string_view take_word(std::string_view& rest) {
  rest.remove_prefix(std::min(rest.find_first_not_of(kBlanks), rest.size()));
  const std::string_view word = rest.substr(0, rest.find_first_of(kBlanks));
  rest.remove_prefix(word.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(kBlanks), rest.size()));
  return word;
}

class StockholmReader {
 public:
  StockholmReader(const std::filesystem::path& file, const AlignmentReading& reading)
      : file_(file), reading_(reading) {}

  void take(const AlignmentLine& line) {
    if (line.text.empty()) {
      end_block();
    } else if (is_stockholm_header(line.text)) {
      begin(line);
    } else if (line.text == "//") {
      end(line);
    } else if (line.text.starts_with("#=")) {
      take_markup(line);
    } else if (line.text.front() != '#') {
      take_row(line);
    }
  }

  std::vector<Alignment> alignments() && {
    if (header_) {
      refuse_line(
          file_,
          *header_,
          "the alignment that begins here has no end, a line \"//\": the file is cut off, or the "
          "line is missing");
    }
    return std::move(all_);
  }

 private:
  struct Markup {
    AlignmentLine line;
    std::string name;  // "#=GC SS_cons"
    std::string_view characters;
  };

  void begin(const AlignmentLine& line) {
    if (line.text != kStockholmHeader) {
      refuse_line(
          file_,
          line.number,
          fmt::format(
              "'{}': the line that begins an alignment is spelt \"{}\", and no other version is "
              "read",
              line.text,
              kStockholmHeader));
    }
    if (header_) {
      refuse_line(
          file_,
          line.number,
          fmt::format(
              "an alignment begins here, and the one of line {} has no end: write a line \"//\" "
              "before this one",
              *header_));
    }
    header_ = line.number;
  }

  void end(const AlignmentLine& line) {
    if (!header_) {
      refuse_line(
          file_,
          line.number,
          fmt::format("\"//\" ends no alignment; one begins with {}", kStockholmHeader));
    }
    end_block();
    if (!rows_.empty()) {
      all_.push_back(alignment_of(rows_, SmallLetters::letters, file_, reading_, masked_));
      all_.back().marks_letters = marks_letters_;
    }
    header_.reset();
    identified_.reset();
    rows_.clear();
    place_.clear();
    masked_.clear();
    marks_letters_ = false;
    blocks_ = 0;
    all_columns_ = 0;
  }

  void expect_begun(const AlignmentLine& line) const {
    if (!header_) {
      refuse_line(
          file_,
          line.number,
          fmt::format(
              "is outside of an alignment, which begins with a line \"{}\"", kStockholmHeader));
    }
  }

  void take_markup(const AlignmentLine& line) {
    expect_begun(line);
    std::string_view rest = line.text;
    const std::string_view kind = take_word(rest);
    if (kind == "#=GF" && take_word(rest) == "ID") {
      if (identified_) {
        refuse_line(
            file_,
            line.number,
            fmt::format(
                "the alignment has its name, #=GF ID, at line {} already: another begins here; "
                "write a line \"//\" and a line \"{}\" before it",
                *identified_,
                kStockholmHeader));
      }
      identified_ = line.number;
    }
    if (kind != "#=GC" && kind != "#=GR") {
      return;
    }
    std::string name(kind);
    for (int words = kind == "#=GR" ? 2 : 1; words > 0; --words) {
      name.append(" ").append(take_word(rest));
    }
    markup_.push_back({line, name, rest});
  }

  void take_row(const AlignmentLine& line) {
    expect_begun(line);
    std::string_view rest = line.text;
    const std::string name(take_word(rest));
    if (name.starts_with('>')) {
      refuse_line(
          file_,
          line.number,
          fmt::format(
              "'{}': a line that begins with '>' is of A3M or FASTA, and the file begins as "
              "Stockholm; give the two as files of their own",
              name));
    }
    if (name.find_first_not_of('/') == std::string::npos) {
      refuse_line(
          file_,
          line.number,
          fmt::format("'{}': the end of an alignment is spelt \"//\"", line.text));
    }
    if (rest.empty()) {
      refuse_line(
          file_,
          line.number,
          fmt::format("'{}': expected a name and its row, separated by spaces", name));
    }
    const auto [place, fresh] = place_.try_emplace(name, rows_.size());
    if (fresh && blocks_ > 0) {
      refuse_line(
          file_,
          line.number,
          fmt::format(
              "the row of '{}' is not in the first block, at line {}: every block has every row",
              name,
              rows_.front().line));
    }
    if (fresh) {
      rows_.push_back({.name = name, .line = line.number});
    }
    const auto [before, once] = block_.try_emplace(name, line.number);
    if (!once) {
      refuse_line(
          file_,
          line.number,
          fmt::format(
              "the row of '{}' is in this block already, at line {}; rows have names of their own, "
              "and an empty line separates blocks",
              name,
              before->second));
    }
    if (block_.size() == 1) {
      first_ = line.number;
      columns_ = rest.size();
    }
    // first what the letters are: blanks inside a row make it longer, too
    add_letters(rows_[place->second], rest, line, file_);
    if (rest.size() != columns_) {
      refuse_line(
          file_,
          line.number,
          fmt::format(
              "the row of '{}' has {} columns, the first of its block, at line {}, has {}; rows of "
              "an alignment are equally long",
              name,
              rest.size(),
              first_,
              columns_));
    }
  }

  void end_block() {
    // markup in a paragraph of its own is that of the block before
    if (block_.empty() && blocks_ == 0) {
      markup_.clear();
      return;
    }
    for (const AlignmentRow& row : rows_) {
      if (!block_.empty() && !block_.contains(row.name)) {
        refuse_line(
            file_,
            first_,
            fmt::format(
                "the block that begins here has no row of '{}', which is at line {}: every block "
                "has every row",
                row.name,
                row.line));
      }
    }
    all_columns_ += block_.empty() ? 0 : columns_;
    for (const Markup& markup : markup_) {
      if (markup.characters.size() != columns_) {
        refuse_line(
            file_,
            markup.line.number,
            fmt::format(
                "'{}' has {} columns, and the rows of its block have {}: it has a character for "
                "each",
                markup.name,
                markup.characters.size(),
                columns_));
      }
      if (markup.name == "#=GC MM") {
        masked_.resize(all_columns_, '.');  // of blocks that have no such line
        masked_.replace(all_columns_ - columns_, columns_, markup.characters);
      }
      mark_letters(markup);
    }
    blocks_ += block_.empty() ? 0 : 1;
    block_.clear();
    markup_.clear();
  }

  // Of a row, which comes before or behind its markup in the block.
  void mark_letters(const Markup& markup) {
    constexpr std::string_view kOfRow = "#=GR ";
    constexpr std::string_view kMask = " MM";
    const std::string& name = markup.name;
    if (!name.starts_with(kOfRow) || !name.ends_with(kMask)) {
      return;
    }
    marks_letters_ = marks_letters_ || markup.characters.find('m') != std::string_view::npos;
    if (reading_.letters == MaskedLetters::none) {
      return;
    }
    const std::string of = name.substr(kOfRow.size(), name.size() - kOfRow.size() - kMask.size());
    const auto place = place_.find(of);
    if (place == place_.end()) {
      refuse_line(
          file_,
          markup.line.number,
          fmt::format(
              "'{}' marks letters of '{}', but no row has that name: give the name of a row, or "
              "remove the line",
              name,
              of));
    }
    std::string& marks = rows_[place->second].marks;
    marks.resize(all_columns_, '.');  // of blocks that have no such line
    marks.replace(all_columns_ - columns_, columns_, markup.characters);
  }

  const std::filesystem::path& file_;
  AlignmentReading reading_;
  std::vector<Alignment> all_;
  std::optional<std::size_t> header_;      // the line of the alignment that is read
  std::optional<std::size_t> identified_;  // the line of its name
  std::vector<AlignmentRow> rows_;
  std::map<std::string, std::size_t> place_;  // of a name among the rows
  int blocks_ = 0;                            // that are whole
  std::size_t all_columns_ = 0;               // of those
  std::string masked_;                        // [column of them], as far as lines say
  bool marks_letters_ = false;                // some line marks one
  // Of the block:
  std::map<std::string, std::size_t> block_;  // the line of each name
  std::vector<Markup> markup_;
  std::size_t first_ = 0;  // its first line
  std::size_t columns_ = 0;
};

}  // namespace

std::vector<Alignment> read_stockholm(
    const std::vector<AlignmentLine>& lines,
    const std::filesystem::path& file,
    const AlignmentReading& reading) {
  StockholmReader reader(file, reading);
  for (const AlignmentLine& line : lines) {
    reader.take(line);
  }
  return std::move(reader).alignments();
}

}  // namespace paradyse
