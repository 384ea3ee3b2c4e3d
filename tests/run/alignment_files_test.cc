// Files of alignments as people write them: headers that are misspelt, files joined to one, letters
// of nucleotides, small letters, and what lies beside them in a folder.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/plan/model/evoformer/evoformer.h"
#include "src/plan/model/stdit/stdit.h"
#include "src/run/data/evoformer/alignment.h"
#include "src/run/data/grid_data.h"
#include "src/run/weights/foreign_tensors.h"
#include "src/run/weights/safetensors.h"
#include "tests/support/folder.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class AlignmentFilesTest : public testing::Test {
 protected:
  fs::path write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  [[nodiscard]] std::vector<Alignment> read(
      const std::string& name, const std::string& text) const {
    return read_alignment_file(write(name, text));
  }
  void refused(
      const std::string& name,
      const std::string& text,
      const std::vector<std::string>& what) const {
    expect_refused([&] { read_alignment_file(write(name, text)); }, text, what);
  }
  static void expect_refused(
      const std::function<void()>& body,
      const std::string& of,
      const std::vector<std::string>& what) {
    const std::string why = test::refusal<std::runtime_error>(body);
    for (const std::string& part : what) {
      EXPECT_THAT(why, HasSubstr(part)) << of;
    }
  }

  test::Folder folder_;
};

const std::vector<std::string> kMisspelt = {
    "#STOCKHOLM 1.0",         "# Stockholm 1.0",      "#  STOCKHOLM 1.0",      "# stockholm 1.0",
    "#\tSTOCKHOLM 1.0",       " # STOCKHOLM 1.0",     "## STOCKHOLM 1.0",      "# STOCKHOLM  1.0",
    "# STOCKHOLM1.0",         "# STOCKHOLM",          "# STOCKHOLM 1.1",       "# STOCKHOLM 1",
    "# STOCKHOLM-1.0",        "# STOCK HOLM 1.0",     "# STOKHOLM 1.0",        "# STOCKHLOM 1.0",
    "#=STOCKHOLM 1.0",        "# STOCKHOLM v1.0",     "STOCKHOLM 1.0",         "Stockholm 1.0",
    "#\xc2\xa0STOCKHOLM 1.0", "# STOCKHOLM 1.0 of x", "#S T O C K H O L M 1.0"};

TEST_F(AlignmentFilesTest, AMisspeltHeaderIsRefusedWithItsSpelling) {
  for (const std::string& header : kMisspelt) {
    const std::vector<std::string> spelling = {"\"# STOCKHOLM 1.0\""};
    const auto at = [&](const char* line) { return std::vector{std::string(line), spelling[0]}; };
    refused("a.sto", header + "\na ACDEF\nb ACDEF\n//\n", at(":1: "));
    // the second, with an end before it and without
    const std::string first = "# STOCKHOLM 1.0\na ACDEF\nb ACDEF\n";
    const std::string second = header + "\na GHIKL\nb GHIKL\n//\n";
    refused("a.sto", first + "\n" + second, at(":5: "));
    refused("a.sto", first + "//\n" + second, at(":5: "));
    // in the middle of another format
    refused("a.a3m", ">a\nACDEF\n>b\nACDEF\n" + header + "\n>c\nACDEF\n", {":5: ", "Stockholm"});
  }
}

TEST_F(AlignmentFilesTest, CommentsAndNamesAreNoHeaders) {
  for (const char* line :
       {"# made in Stockholm",
        "# 1.0",
        "#=GF CC Stockholm University",
        "#=GF DE STOCKHOLM 1.0",
        "# of STOCKHOLM 1.0 files"}) {
    const std::string text = std::string("# STOCKHOLM 1.0\n") + line + "\na ACDEF\n//\n";
    EXPECT_EQ(read("a.sto", text).size(), 1U) << line;
  }
  EXPECT_THAT(
      read("a.sto", "# STOCKHOLM 1.0\nstockholm1 ACDEF\nstockholm ACDEF\n//\n").empty() ? 0 : 1, 1);
}

TEST_F(AlignmentFilesTest, AFileInAnotherIsRefused) {
  const std::string rows = ">a\nACDEF\n>b\nACDEF\n";
  refused("a.a3m", rows + "#A3M#\n" + rows, {":5: ", "another A3M file"});
  refused("a.a3m", "#5\t1\n" + rows + "#5,5\t1,1\n" + rows, {":6: ", "another A3M file"});
  refused("a.a3m", rows + "#NEXUS\n" + rows, {":5: ", "NEXUS"});
  refused("a.a3m", rows + "CLUSTAL W (1.83) multiple\n", {":5: ", "another format"});
  refused("a.a3m", rows + "\xef\xbb\xbf" + rows, {":5: ", "several files"});
  refused("a.sto", "# STOCKHOLM 1.0\n>a ACD\n>b ACD\n//\n", {":2: ", "A3M or FASTA"});
  refused(
      "a.sto",
      "# STOCKHOLM 1.0\n#=GF ID x\na ACD\n\n#=GF ID y\na EFG\n//\n",
      {":5: ", "at line 2 already", "\"//\""});
  refused("a.sto", "# STOCKHOLM 1.0\na ACD\n///\n", {":3: ", "\"//\""});
  // each with a name of its own, and a header of ColabFold
  EXPECT_EQ(
      read("a.sto", "# STOCKHOLM 1.0\n#=GF ID x\na ACD\n//\n# STOCKHOLM 1.0\n#=GF ID y\na AC\n//\n")
          .size(),
      2U);
  EXPECT_EQ(read("a.a3m", "#5\t1\n" + rows).size(), 1U);
}

TEST_F(AlignmentFilesTest, EndsOfLinesAndMarksAreThoseOfEditors) {
  const auto names = [&](const std::string& text) { return read("a.sto", text).at(0).names; };
  EXPECT_THAT(names("# STOCKHOLM 1.0\r\r\na ACD\r\r\nb ACD\r\r\n//\r\r\n"), ElementsAre("a", "b"));
  EXPECT_THAT(names("# STOCKHOLM 1.0\r\ra ACD\rb ACD\r\ra EF\rb EF\r//\r"), ElementsAre("a", "b"));
  refused("a.a3m", "\xef\xbb\xbf\xef\xbb\xbf>a\nACD\n", {":1: ", "two byte order marks"});
  for (const char* text : {"clustal w\n\na ACD\n", "Clustal Omega\n\na ACD\n"}) {
    refused("a.aln", text, {"Clustal"});
  }
  for (const char* text : {"#nexus\nbegin data;\n", "# NEXUS\n", "#Nexus [made by x]\n"}) {
    refused("a.nex", text, {"NEXUS"});
  }
  for (const auto& [bytes, tool] : std::map<std::string, std::string>{
           {"\x1f\x8b\x08", "gunzip "}, {"BZh9", "bunzip2 "}, {"PK\x03\x04", "unzip "}}) {
    refused("in/a.a3m.gz", bytes, {tool + (folder_ / "in" / "a.a3m.gz").string()});
  }
}

// So many letters, of which some are those of `others`, in rows of 50.
std::string fasta_of(int letters, const std::string& others, int of_others) {
  std::mt19937 random(5);
  std::string all;
  for (int i = 0; i < letters; ++i) {
    all += i < of_others ? others[random() % others.size()] : "ACGT"[random() % 4];
  }
  std::shuffle(all.begin(), all.end(), random);
  std::string text;
  for (std::size_t row = 0; row * 50 < all.size(); ++row) {
    text += ">s\n" + all.substr(row * 50, 50) + "\n";
  }
  return text;
}

TEST_F(AlignmentFilesTest, MostlyNucleotidesAreNucleotides) {
  for (const auto& [others, count] : std::vector<std::pair<std::string, int>>{
           {"R", 1}, {"Y", 1}, {"RYSWKMBDHV", 20}, {"EFILPQ", 2}, {"X", 60}, {"N", 60}}) {
    const std::string text = fasta_of(200, others, count);
    refused("dna.fasta", text, {":1: ", "nucleotides", "translate"});
    EXPECT_EQ(read_alignment_file(write("dna.fasta", text), {.surely_protein = true}).size(), 1U);
  }
  refused("dna.fasta", fasta_of(200, "R", 1), {"199 of the 200 letters"});
  refused("dna.fasta", ">a\nACGTXACGTX\n", {"all of the 8 letters"});
  // a protein of few kinds of residues, a short one, and letters of all of them
  for (const std::string& text :
       {fasta_of(200, "RDEFHIKLMPQSVWY", 21),
        fasta_of(49, "R", 1).substr(0, 52),
        fasta_of(100, "ARNDCQEGHILKMFPSTWYV", 100)}) {
    EXPECT_EQ(read("protein.fasta", text).size(), 1U) << text;
  }
}

TEST_F(AlignmentFilesTest, SmallLettersAreToldOf) {
  const std::string small = "small letters are insertions in A3M: write capitals";
  refused("a.a3m", ">a\nacdef\n>b\nacdef\n", {":1: ", "no capital letters", small, ".fasta"});
  refused("a.a3m", ">a\nacdef\n>b\nac-ef\n", {":1: ", "no capital letters", small});
  refused("a.a3m", ">a\nacdef\n", {":1: ", "no capital letters", small});
  refused("a.txt", ">a\nacdefghik\n>b\nacdef\n", {":1: ", "no capital letters", small});
  refused("a.a3m", ">a\nAC-EF\n>b\nacdef\n", {":3: ", "0 columns, the first 5", small});
  refused("a.a3m", ">a\nacDEF\n>b\nACDEF\n", {":3: ", "5 columns, the first 3", small});
  refused("a.a3m", ">a\n--\n>b\nAC\n", {":1: ", "has no letters"});
  EXPECT_EQ(read("a.fasta", ">a\nacdef\n>b\nac-ef\n").at(0).letters.size(), 2U);
}

// A model of which only the kind matters.
Model tiny_evoformer() { return evoformer_model({.blocks = 1}); }

TEST_F(AlignmentFilesTest, RowsOfGapsAreTold) {
  const fs::path file = write("a.a3m", ">a\nACDEF\n>b\n-----\n>c\nacd--f-f--\n>d\nA----\n");
  const GridData data = read_grid_data({file}, tiny_evoformer());
  EXPECT_THAT(
      data.notes(),
      ElementsAre(testing::AllOf(HasSubstr("2 rows count as sequences"), HasSubstr(":3, 'b'"))));
  EXPECT_TRUE(
      read_grid_data({write("b.a3m", ">a\nACDEF\n>b\nA----\n")}, tiny_evoformer()).notes().empty());
}

TEST_F(AlignmentFilesTest, WhatLiesBesideAlignmentsIsLeftOut) {
  const std::string alignment = ">a\nACDEF\n>b\nACDEF\n";
  write("all/b.a3m", alignment);
  write("all/a.sto", "# STOCKHOLM 1.0\na ACDEFGH\n//\n");
  write("all/c.txt", alignment);
  write("all/README.md", "# Stockholm alignments\n\ntext\n");
  write("all/LICENSE", "Permission is granted\n");
  write("all/notes.txt", "");
  write("all/blank.txt", " \n# nothing\n");
  write("all/x.pdb", "ATOM      1  N   MET A   1\n");
  write("all/x.tar.gz", "\x1f\x8b\x08");
  write("all/.hidden", alignment);
  write("all/below/d.a3m", alignment);
  const GridData data = read_grid_data({folder_ / "all"}, tiny_evoformer());
  EXPECT_EQ(data.size(), 3);
  std::map<std::string, std::int64_t> counts;
  for (const auto& [why, one] : data.left_out()) {
    counts[why] = one.files;
  }
  EXPECT_EQ(
      counts,
      (std::map<std::string, std::int64_t>{
          {"hidden", 1}, {"folder", 1}, {"without sequences", 2}, {"no alignment", 4}}));
  EXPECT_THAT(data.notes(), ElementsAre(HasSubstr("files left out: 1 folder (below), 1 hidden")));
  // what is, or is named as, an alignment is read or refused
  const auto refuses = [&](const std::string& name, const std::string& text, const char* what) {
    write("all/" + name, text);
    expect_refused(
        [&] { read_grid_data({folder_ / "all"}, tiny_evoformer()); }, name, {name, what});
    fs::remove(folder_ / "all" / name);
  };
  refuses("e.a3m", "", "no sequences");
  refuses("e.a3m.gz", "\x1f\x8b\x08", "gunzip");
  refuses("e.txt", "CLUSTAL W\n\na ACD\n", "Clustal");
  refuses("e.txt", "#stockholm 1.0\na ACD\n//\n", "# STOCKHOLM 1.0");
  refuses("e", "#NEXUS\n", "NEXUS");
  // by its own name a file is what it was given for
  expect_refused(
      [&] { read_grid_data({folder_ / "all" / "README.md"}, tiny_evoformer()); },
      "",
      {"README.md"});
  write("none/README.md", "text\n");
  expect_refused(
      [&] { read_grid_data({folder_ / "none"}, tiny_evoformer()); },
      "none",
      {"has no alignments, only 1 no alignment (README.md)"});
}

TEST_F(AlignmentFilesTest, SafetensorsReadersSayWhatAFileIs) {
  for (const auto& [text, what] : std::map<std::string, std::string>{
           {"# STOCKHOLM 1.0\na ACD\n//\n", "is an alignment (Stockholm)"},
           {"#stockholm 1.0\na ACD\n//\n", "is an alignment (Stockholm)"},
           {">a\nACD\n>b\nACD\n", "is an alignment or sequences"},
           {"{\"tokens\": [1, 2]}\n", "is JSON"},
           {"<!DOCTYPE html>\n<html>", "is XML or a web page"},
           {"plain words\n", "is text"},
           {std::string("PK\x03\x04\x14\0\0\0\0\0", 10), "is a zip archive (torch.save"},
           {std::string("\x80\x02}q\0X\1\0\0\0a", 11), "is a pickle"},
           {std::string("\x93NUMPY\x01\0v\0", 10), "NumPy"},
           {std::string(
                "\0\0\0\x20"
                "ftypisom\0",
                13),
            "is a video (MP4)"},
           {"version https://git-lfs.github.com/spec/v1\noid x\n", "Git LFS"}}) {
    const fs::path file = write("a.safetensors", text);
    expect_refused([&] { const SafetensorsReader reader(file); }, text, {what, "safetensors"});
  }
  // what begins as safetensors do is judged by its header
  expect_refused(
      [&] {
        const SafetensorsReader reader(
            write("b.safetensors", std::string(">\0\0\0\0\0\0\0{}", 10)));
      },
      "cut",
      {"cut short"});
}

TEST_F(AlignmentFilesTest, AreNotReadForFamiliesThatWereAdded) {
  Model own;
  own.family = "axial";
  EXPECT_THAT(
      test::refusal([&] { read_grid_data({write("c.a3m", ">a\nACDEF\n>b\nACDEG\n")}, own); }),
      testing::AllOf(HasSubstr("family 'axial'"), HasSubstr("examples/axial.cc")));
}

}  // namespace
}  // namespace paradyse
