// The last thing before a card: commands pass only where their originating endpoint has an extent.
//
// Willow, section 2.6: the host associates permissions with endpoints, extent by extent, and the
// device checks each access to the flash against those of the endpoint that is responsible for it,
// whoever makes it. Here nothing else is joined to a card's commands, so there is no other way to
// it. A read wants an extent, a write one that may be written; an erase one with all of the pages
// that go with it: ERASE_BITS is a block of each chip, as addresses interleave the chips. What is
// refused never reaches the card: it is acknowledged with REFUSED.
//
// The table is gone through line by line: a command takes up to EXTENTS clocks, in which a card
// moves less than a page. Willow states 2 us for its worst case, and 768 lines. A command is held
// against each line as that is when it is looked at: who takes an extent back waits for what is in
// flight. A line that is loaded without `is_valid` is none. Lines outlive a reset.

`default_nettype none

module extent_check #(
  parameter int EXTENTS = 64,                    // lines; a power of two
  parameter int LINE_BITS = $clog2(EXTENTS)
) (
  input  wire  logic                              clk,
  input  wire  logic                              reset,

  input  wire  logic                              load,
  input  wire  logic [LINE_BITS-1:0]              load_line,
  input  wire  shell_pkg::extent_t                load_extent,

  // The splitter.
  input  wire  logic                              s_valid,
  output logic                                    s_ready,
  input  wire  shell_pkg::command_t               s_command,
  input  wire  logic [shell_pkg::TAG_BITS-1:0]    s_tag,

  output logic                                    ack_valid,
  input  wire  logic                              ack_ready,
  output logic [shell_pkg::TAG_BITS-1:0]          ack_tag,
  output logic [shell_pkg::STATUS_BITS-1:0]       ack_status,

  // The card.
  output logic                                    m_valid,
  input  wire  logic                              m_ready,
  output shell_pkg::command_t                     m_command,
  output logic [shell_pkg::TAG_BITS-1:0]          m_tag,

  input  wire  logic                              card_ack_valid,
  output logic                                    card_ack_ready,
  input  wire  logic [shell_pkg::TAG_BITS-1:0]    card_ack_tag,
  input  wire  logic [shell_pkg::STATUS_BITS-1:0] card_ack_status
);

  localparam int PAGE_BITS = shell_pkg::PAGE_BITS;
  localparam int ERASE_BITS = shell_pkg::ERASE_BITS;

  if (EXTENTS < 2 || (EXTENTS & (EXTENTS - 1)) != 0) begin : check_extents
    $error("extent_check: EXTENTS is not a power of two of at least 2");
  end

  // An extent_t each. An FPGA gives memories their first contents with its configuration.
  logic [shell_pkg::EXTENT_BITS-1:0] extents [EXTENTS];

  initial begin
    for (int i = 0; i < EXTENTS; i++) extents[i] = '0;
  end

  logic                 is_checking;
  logic                 is_refused;
  logic [LINE_BITS-1:0] line;
  shell_pkg::extent_t   extent;
  logic [PAGE_BITS-1:0] first;
  logic [PAGE_BITS-1:0] last;
  logic                 is_erase;
  logic                 is_covered;

  assign extent = extents[line];
  assign is_erase = m_command.operation == shell_pkg::ERASE;
  assign first = is_erase ? {m_command.page[PAGE_BITS-1:ERASE_BITS], {ERASE_BITS{1'b0}}}
                          : m_command.page;
  assign last = is_erase ? {m_command.page[PAGE_BITS-1:ERASE_BITS], {ERASE_BITS{1'b1}}}
                         : m_command.page;
  assign is_covered = extent.is_valid && extent.endpoint == m_command.endpoint &&
                      extent.first <= first && last <= extent.last &&
                      (extent.may_write || m_command.operation == shell_pkg::READ);

  assign s_ready = !is_checking && !is_refused && (!m_valid || m_ready);

  // A refusal goes before what the card acknowledges: there is at most one for each command.
  assign ack_valid = is_refused || card_ack_valid;
  assign ack_tag = is_refused ? m_tag : card_ack_tag;
  assign ack_status = is_refused ? shell_pkg::REFUSED : card_ack_status;
  assign card_ack_ready = ack_ready && !is_refused;

  always_ff @(posedge clk) begin
    if (load) extents[load_line] <= load_extent;
    if (m_ready) m_valid <= 1'b0;
    if (ack_ready) is_refused <= 1'b0;
    if (s_ready && s_valid) begin
      is_checking <= 1'b1;
      line <= '0;
      m_command <= s_command;
      m_tag <= s_tag;
    end
    if (is_checking) begin
      line <= line + 1'b1;
      if (is_covered) begin
        is_checking <= 1'b0;
        m_valid <= 1'b1;
      end else if (line == '1) begin
        is_checking <= 1'b0;
        is_refused <= 1'b1;
      end
    end
    if (reset) begin
      is_checking <= 1'b0;
      is_refused <= 1'b0;
      m_valid <= 1'b0;
    end
  end

endmodule

`default_nettype wire
