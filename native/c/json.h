// A parser for untrusted JSON of bounded size and depth.

#ifndef ONEGRU_NATIVE_C_JSON_H_
#define ONEGRU_NATIVE_C_JSON_H_

#include <algorithm>
#include <charconv>
#include <clocale>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace onegru {

// Thrown if a file is broken, or if onegru did not write it.
class BadFile : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Json {
  enum Kind : std::uint8_t { kNull, kBool, kNumber, kString, kArray, kObject };
  Kind kind = kNull;
  bool boolean = false;
  double number = 0;
  bool is_integer = false;  // written without a decimal point and an exponent
  std::string text;
  std::vector<Json> items;         // of an array or an object
  std::vector<std::string> names;  // of the items of an object

  // Returns null if this is not an object, or has no such member.
  const Json* Find(std::string_view name) const {
    if (kind != kObject) return nullptr;
    const auto found = std::find(names.begin(), names.end(), name);
    return found == names.end() ? nullptr : &items[static_cast<std::size_t>(found - names.begin())];
  }
  const Json& At(std::string_view name, Kind wanted) const {
    const Json* const found = Find(name);
    if (found == nullptr || found->kind != wanted) {
      throw BadFile(std::string(name) + (found == nullptr ? ": missing" : ": has the wrong type"));
    }
    return *found;
  }
  // Returns an integer in 0…2^53.
  std::uint64_t Size() const {
    if (kind != kNumber || !is_integer || std::signbit(number) || number > 0x1p53) {
      throw BadFile("a size must be an integer in 0…2^53");
    }
    return static_cast<std::uint64_t>(number);
  }
};

class JsonParser {
 public:
  static Json Parse(std::string_view text) {
    JsonParser parser(text);
    Json value = parser.Value(0);
    parser.Space();
    if (parser.at_ != text.size()) Fail();
    return value;
  }

 private:
  static constexpr int kDepth = 16;

  explicit JsonParser(std::string_view text) : text_(text) {}

  [[noreturn]] static void Fail() { throw BadFile("not JSON, or truncated"); }
  void Space() {
    while (Next(" \t\r\n")) ++at_;
  }
  bool Take(char c) {
    Space();
    const bool found = at_ < text_.size() && text_[at_] == c;
    at_ += found ? 1 : 0;
    return found;
  }
  bool TakeWord(std::string_view word) {
    const bool found = text_.substr(at_, word.size()) == word;
    at_ += found ? word.size() : 0;
    return found;
  }
  bool Next(std::string_view any) const { return at_ < text_.size() && any.find(text_[at_]) != any.npos; }

  Json Value(int depth) {
    if (depth > kDepth) throw BadFile("JSON is nested too deeply");
    Json value;
    if (Take('{')) {
      value.kind = Json::kObject;
      if (Take('}')) return value;
      do {
        Space();
        value.names.push_back(String());
        if (!Take(':')) Fail();
        value.items.push_back(Value(depth + 1));
      } while (Take(','));
      if (!Take('}')) Fail();
      std::vector<std::string_view> sorted(value.names.begin(), value.names.end());
      std::sort(sorted.begin(), sorted.end());
      if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) throw BadFile("JSON with a duplicate name");
    } else if (Take('[')) {
      value.kind = Json::kArray;
      if (Take(']')) return value;
      do value.items.push_back(Value(depth + 1));
      while (Take(','));
      if (!Take(']')) Fail();
    } else if (Next("\"")) {
      value.kind = Json::kString;
      value.text = String();
    } else if (TakeWord("true") || TakeWord("false")) {
      value.kind = Json::kBool;
      value.boolean = text_[at_ - 2] == 'u';
    } else if (!TakeWord("null")) {
      value.kind = Json::kNumber;
      value.number = Number(value.is_integer);
    }
    return value;
  }

  // Skips one or more digits.
  void Digits() {
    const std::size_t begin = at_;
    while (Next("0123456789")) ++at_;
    if (at_ == begin) Fail();
  }

  double Number(bool& is_integer) {
    const std::size_t begin = at_;
    if (Next("-")) ++at_;
    const std::size_t first = at_;
    Digits();
    if (at_ > first + 1 && text_[first] == '0') Fail();
    const std::size_t point = at_;
    is_integer = !Next(".eE");
    if (Next(".")) {
      ++at_;
      Digits();
    }
    if (Next("eE")) {
      ++at_;
      if (Next("+-")) ++at_;
      Digits();
    }
    double number = 0;
#if defined(__cpp_lib_to_chars)
    const auto read = std::from_chars(text_.data() + begin, text_.data() + at_, number);
    if (read.ec != std::errc()) number = HUGE_VAL;
    static_cast<void>(point);
#else
    std::string digits(text_.substr(begin, at_ - begin));
    if (point < at_ && text_[point] == '.') digits.replace(point - begin, 1, std::localeconv()->decimal_point);
    number = std::strtod(digits.c_str(), nullptr);
#endif
    if (!std::isfinite(number)) throw BadFile("a number beyond float64");
    return number;
  }

  std::string String() {
    if (!Take('"')) Fail();
    std::string string;
    while (!Next("\"")) {
      const std::size_t size = CharacterBytes();
      if (static_cast<unsigned char>(text_[at_]) < 0x20) Fail();
      if (text_[at_] == '\\') {
        ++at_;
        Escape(string);
      } else {
        string += text_.substr(at_, size);
        at_ += size;
      }
    }
    ++at_;
    return string;
  }

  // Returns the number of bytes of the next character. It must be valid UTF-8: not overlong, and not a surrogate.
  std::size_t CharacterBytes() const {
    if (at_ == text_.size()) Fail();
    const auto byte = [&](std::size_t i) {
      return at_ + i < text_.size() ? static_cast<unsigned char>(text_[at_ + i]) : 0u;
    };
    const unsigned first = byte(0), second = byte(1);
    const std::size_t size = first < 0x80   ? 1
                             : first < 0xc2 ? 0
                             : first < 0xe0 ? 2
                             : first < 0xf0 ? 3
                             : first < 0xf5 ? 4
                                            : 0;
    for (std::size_t i = 1; i < size; ++i) {
      if (byte(i) >> 6 != 2) Fail();
    }
    if (size == 0 || (first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) ||
        (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90)) {
      Fail();
    }
    return size;
  }

  // Reads the rest of an escape sequence, after its backslash.
  void Escape(std::string& to) {
    constexpr std::string_view kEscapes = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    if (at_ == text_.size()) Fail();
    const std::size_t which = kEscapes.find(text_[at_]);
    if (which != kEscapes.npos) {
      ++at_;
      to += kMeanings[which];
      return;
    }
    std::uint32_t code = Code();
    if (code >> 10 == 0x37) Fail();  // a low surrogate without a high one
    if (code >> 10 == 0x36) {
      if (!TakeWord("\\")) Fail();
      const std::uint32_t half = Code();
      if (half >> 10 != 0x37) Fail();
      code = 0x10000 + ((code & 0x3ff) << 10 | (half & 0x3ff));
    }
    constexpr unsigned kFirst[] = {0, 0xc0, 0xe0, 0xf0};
    const unsigned more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    to += static_cast<char>(kFirst[more] | code >> 6 * more);
    for (unsigned i = more; i-- > 0;) to += static_cast<char>(0x80 | (code >> 6 * i & 0x3f));
  }

  // Reads u and four hexadecimal digits.
  std::uint32_t Code() {
    const std::string_view text = text_.substr(at_, 5);
    std::uint32_t code = 0;
    if (text.size() != 5 || text[0] != 'u') Fail();
    const auto read = std::from_chars(text.data() + 1, text.data() + 5, code, 16);
    if (read.ptr != text.data() + 5 || read.ec != std::errc()) Fail();
    at_ += 5;
    return code;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace onegru

#endif  // ONEGRU_NATIVE_C_JSON_H_
