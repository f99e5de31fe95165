// Page reads and writes between the flash cards and page buffers in the host's memory.
//
// BlueDBM, section 3.3 and figure 7. Software takes a free buffer of the kind that it wants, and
// sends a request with it. What is read arrives interleaved and goes through a vector of FIFOs to
// the host's memory in DMA bursts; what is written is fetched page by page, in order, when the card
// asks for it. A completion, which is what raises an interrupt, has the buffer and how the command
// ended. Software gives a read buffer back when it is done with it; a write buffer is free when
// its completion was taken: the paper frees it when the data was read, but here its number is the
// command's tag, too. An erase takes a write buffer, and leaves what is in it alone.
//
// PCIe is slower than two cards. A read gets a FIFO with a place for the whole page before it is
// sent on, and waits for one here: pages that waited in the cards for PCIe would hold up those of
// the in-store processors (`fpga/rtl --step figures` measures both at once).
//
// A command's endpoint is set by what lies between PCIe and here, from the page of registers
// through which the request came: software must not be able to choose it (Willow, section 2.6).

`default_nettype none

module host_interface #(
  parameter int CARDS = 2,           // at least 2
  parameter int BUFFERS = 128,       // of each kind; a power of two
  parameter int FIFOS = 64,          // pages on their way to the host; a power of two
  parameter int BURST = 16,          // words of a DMA burst: 256 bytes; a power of two
  parameter int CARD_BITS = CARDS < 2 ? 1 : $clog2(CARDS),
  parameter int BUFFER_BITS = $clog2(BUFFERS),
  parameter int POSITION_BITS = $clog2(shell_pkg::PAGE_WORDS / BURST)
) (
  input  wire  logic                                clk,
  input  wire  logic                                reset,

  // Software.
  output logic                                      free_read_valid,
  input  wire  logic                                free_read_ready,
  output logic [BUFFER_BITS-1:0]                    free_read,
  input  wire  logic                                give_back_valid,  // a read buffer
  input  wire  logic [BUFFER_BITS-1:0]              give_back,
  output logic                                      free_write_valid,
  input  wire  logic                                free_write_ready,
  output logic [BUFFER_BITS-1:0]                    free_write,

  input  wire  logic                                s_valid,
  output logic                                      s_ready,
  input  wire  logic [CARD_BITS-1:0]                s_card,
  input  wire  shell_pkg::command_t                 s_command,
  input  wire  logic [BUFFER_BITS-1:0]              s_buffer,

  output logic                                      completion_valid,
  input  wire  logic                                completion_ready,
  output logic                                      completion_is_read,
  output logic [BUFFER_BITS-1:0]                    completion_buffer,
  output logic [shell_pkg::STATUS_BITS-1:0]         completion_status,

  // DMA: to read buffers; and from write buffers, whose data comes in the order of the fetches.
  output logic                                      store_valid,
  input  wire  logic                                store_ready,
  output logic [BUFFER_BITS-1:0]                    store_buffer,
  output logic [POSITION_BITS-1:0]                  store_position,   // of the burst in the page
  output logic [shell_pkg::DATA_BITS-1:0]           store_data,
  output logic                                      store_is_last,    // of the burst

  output logic                                      fetch_valid,
  input  wire  logic                                fetch_ready,
  output logic [BUFFER_BITS-1:0]                    fetch_buffer,
  output logic [POSITION_BITS-1:0]                  fetch_position,
  input  wire  logic                                data_valid,
  output logic                                      data_ready,
  input  wire  logic [shell_pkg::DATA_BITS-1:0]     data,

  // The cards' splitters; card 0 lowest.
  output logic [CARDS-1:0]                          command_valid,
  input  wire  logic [CARDS-1:0]                    command_ready,
  output shell_pkg::command_t                       command,
  output logic [shell_pkg::USER_TAG_BITS-1:0]       command_tag,

  input  wire  logic [CARDS-1:0]                    read_valid,
  output logic [CARDS-1:0]                          read_ready,
  input  wire  logic [CARDS*shell_pkg::USER_TAG_BITS-1:0] read_tag,
  input  wire  logic [CARDS*shell_pkg::DATA_BITS-1:0] read_data,

  input  wire  logic [CARDS-1:0]                    request_valid,
  output logic [CARDS-1:0]                          request_ready,
  input  wire  logic [CARDS*shell_pkg::USER_TAG_BITS-1:0] request_tag,

  output logic [CARDS-1:0]                          write_valid,
  input  wire  logic [CARDS-1:0]                    write_ready,
  output logic [shell_pkg::USER_TAG_BITS-1:0]       write_tag,
  output shell_pkg::burst_t                         write_burst,

  input  wire  logic [CARDS-1:0]                    ack_valid,
  output logic [CARDS-1:0]                          ack_ready,
  input  wire  logic [CARDS*shell_pkg::USER_TAG_BITS-1:0] ack_tag,
  input  wire  logic [CARDS*shell_pkg::STATUS_BITS-1:0] ack_status
);

  localparam int USER_TAG_BITS = shell_pkg::USER_TAG_BITS;
  localparam int DATA_BITS = shell_pkg::DATA_BITS;
  localparam int STATUS_BITS = shell_pkg::STATUS_BITS;
  localparam int WORD_BITS = $clog2(shell_pkg::PAGE_WORDS);
  localparam int FIFO_BITS = $clog2(FIFOS);
  localparam int KIND_BIT = USER_TAG_BITS - 1;   // of a tag: whether it is of a read

  if (BUFFER_BITS >= USER_TAG_BITS || FIFO_BITS >= USER_TAG_BITS) begin : check_buffers
    $error("host_interface: USER_TAG_BITS can not name BUFFERS and FIFOS");
  end

  // Requests. A read's tag is its FIFO, that of the others is their buffer.
  logic                     is_read;
  logic                     has_fifo;
  logic                     is_fifo_free;
  logic [FIFO_BITS-1:0]     fifo;
  logic [FIFO_BITS-1:0]     free_fifo;
  logic [BUFFER_BITS-1:0]   buffers [FIFOS];     // for whose pages the FIFOs are
  logic                     is_write_buffer_over;

  assign is_read = s_command.operation == shell_pkg::READ;
  assign s_ready = command_ready[s_card] && (has_fifo || !is_read);
  assign command = s_command;
  assign command_tag = is_read ? {1'b1, (USER_TAG_BITS-1)'(fifo)}
                               : {1'b0, (USER_TAG_BITS-1)'(s_buffer)};
  always_comb begin
    for (int c = 0; c < CARDS; c++)
      command_valid[c] = s_valid && s_card == CARD_BITS'(c) && (has_fifo || !is_read);
  end

  free_queue #(
    .NUMBERS(FIFOS)
  ) fifos (
    .clk,
    .reset,
    .s_valid(is_fifo_free),
    .s_number(free_fifo),
    .m_valid(has_fifo),
    .m_ready(s_valid && is_read && command_ready[s_card]),
    .m_number(fifo)
  );

  free_queue #(
    .NUMBERS(BUFFERS)
  ) read_buffers (
    .clk,
    .reset,
    .s_valid(give_back_valid),
    .s_number(give_back),
    .m_valid(free_read_valid),
    .m_ready(free_read_ready),
    .m_number(free_read)
  );

  free_queue #(
    .NUMBERS(BUFFERS)
  ) write_buffers (
    .clk,
    .reset,
    .s_valid(is_write_buffer_over),
    .s_number(completion_buffer),
    .m_valid(free_write_valid),
    .m_ready(free_write_ready),
    .m_number(free_write)
  );

  // What a card acknowledges, for the completions below.
  logic [CARDS-1:0]         ack_grant;
  logic [USER_TAG_BITS-1:0] acked;
  logic [STATUS_BITS-1:0]   acked_status;
  logic [BUFFER_BITS-1:0]   acked_buffer;

  // Reads: cards take turns, burst by burst.
  logic [CARDS-1:0]         read_grant;
  logic [FIFO_BITS-1:0]     read_fifo;
  logic [DATA_BITS-1:0]     read_word;
  logic                     has_place;
  logic [FIFO_BITS-1:0]     store_fifo;
  logic [POSITION_BITS-1:0] stored [FIFOS];      // bursts of the page that have gone to the host
  logic                     is_stored;          // a burst has
  logic                     is_page_stored;

  round_robin #(
    .REQUESTS(CARDS)
  ) read_turns (
    .clk,
    .reset,
    .request(read_valid),
    .use_grant(has_place),
    .grant(read_grant)
  );

  always_comb begin
    read_fifo = '0;
    read_word = '0;
    for (int c = 0; c < CARDS; c++) begin
      if (read_grant[c]) begin
        read_fifo = read_tag[USER_TAG_BITS*c +: FIFO_BITS];
        read_word = read_data[DATA_BITS*c +: DATA_BITS];
      end
    end
  end
  assign read_ready = has_place ? read_grant : '0;

  fifo_vector #(
    .FIFOS(FIFOS),
    .DEPTH(shell_pkg::PAGE_WORDS),
    .BURST(BURST),
    .WIDTH(DATA_BITS)
  ) pages (
    .clk,
    .reset,
    .s_valid(read_grant != '0),
    .s_ready(has_place),
    .s_index(read_fifo),
    .s_data(read_word),
    .m_valid(store_valid),
    .m_ready(store_ready),
    .m_index(store_fifo),
    .m_data(store_data),
    .m_is_last(store_is_last)
  );

  assign store_buffer = buffers[store_fifo];
  assign store_position = stored[store_fifo];
  assign is_stored = store_valid && store_ready && store_is_last;
  assign is_page_stored = is_stored && store_position == '1;
  assign is_fifo_free = is_page_stored || (ack_grant != '0 && acked[KIND_BIT]);
  assign free_fifo = is_page_stored ? store_fifo : acked[FIFO_BITS-1:0];

  // Writes: what cards have asked for, to be fetched, and to be passed on. A buffer is asked for
  // once, so there is a place for all.
  logic [CARDS-1:0]                 request_grant;
  logic [CARD_BITS-1:0]             request_card;
  logic [BUFFER_BITS-1:0]           request_buffer;
  logic                             has_fetch;
  logic                             is_fetched;
  logic                             has_write;
  logic                             is_written;
  logic [CARD_BITS-1:0]             write_card;
  logic [BUFFER_BITS-1:0]           write_buffer;
  logic [WORD_BITS-1:0]             write_word;

  round_robin #(
    .REQUESTS(CARDS)
  ) request_turns (
    .clk,
    .reset,
    .request(request_valid),
    .use_grant(1'b1),
    .grant(request_grant)
  );

  always_comb begin
    request_card = '0;
    request_buffer = '0;
    for (int c = 0; c < CARDS; c++) begin
      if (request_grant[c]) begin
        request_card = CARD_BITS'(c);
        request_buffer = request_tag[USER_TAG_BITS*c +: BUFFER_BITS];
      end
    end
  end
  assign request_ready = request_grant;

  packet_fifo #(
    .WIDTH(BUFFER_BITS),
    .DEPTH(BUFFERS)
  ) to_fetch (
    .clk,
    .reset,
    .s_valid(request_grant != '0),
    .s_ready(),
    .s_data(request_buffer),
    .m_valid(has_fetch),
    .m_ready(is_fetched),
    .m_data(fetch_buffer),
    .level()
  );

  packet_fifo #(
    .WIDTH(CARD_BITS + BUFFER_BITS),
    .DEPTH(BUFFERS)
  ) to_write (
    .clk,
    .reset,
    .s_valid(request_grant != '0),
    .s_ready(),
    .s_data({request_card, request_buffer}),
    .m_valid(has_write),
    .m_ready(is_written),
    .m_data({write_card, write_buffer}),
    .level()
  );

  assign fetch_valid = has_fetch;
  assign is_fetched = fetch_ready && fetch_position == '1;
  assign data_ready = has_write && write_ready[write_card];
  assign is_written = data_valid && data_ready && write_word == '1;
  assign write_tag = {1'b0, (USER_TAG_BITS-1)'(write_buffer)};
  assign write_burst.is_last = write_word == '1;
  assign write_burst.data = data;
  always_comb begin
    for (int c = 0; c < CARDS; c++)
      write_valid[c] = data_valid && has_write && write_card == CARD_BITS'(c);
  end

  // Completions: a page that was stored, or else what a card acknowledges. A buffer has one at a
  // time, so there is a place for all.
  round_robin #(
    .REQUESTS(CARDS)
  ) ack_turns (
    .clk,
    .reset,
    .request(ack_valid),
    .use_grant(!is_page_stored),
    .grant(ack_grant)
  );

  always_comb begin
    acked = '0;
    acked_status = '0;
    for (int c = 0; c < CARDS; c++) begin
      if (ack_grant[c]) begin
        acked = ack_tag[USER_TAG_BITS*c +: USER_TAG_BITS];
        acked_status = ack_status[STATUS_BITS*c +: STATUS_BITS];
      end
    end
  end
  assign ack_ready = is_page_stored ? '0 : ack_grant;
  assign acked_buffer = acked[KIND_BIT] ? buffers[acked[FIFO_BITS-1:0]] : acked[BUFFER_BITS-1:0];

  packet_fifo #(
    .WIDTH(1 + BUFFER_BITS + STATUS_BITS),
    .DEPTH(2 * BUFFERS)
  ) completions (
    .clk,
    .reset,
    .s_valid(is_page_stored || ack_grant != '0),
    .s_ready(),
    .s_data(is_page_stored ? {1'b1, store_buffer, shell_pkg::DONE}
                           : {acked[KIND_BIT], acked_buffer, acked_status}),
    .m_valid(completion_valid),
    .m_ready(completion_ready),
    .m_data({completion_is_read, completion_buffer, completion_status}),
    .level()
  );

  assign is_write_buffer_over = completion_valid && completion_ready && !completion_is_read;

  always_ff @(posedge clk) begin
    if (s_valid && s_ready && is_read) buffers[fifo] <= s_buffer;
    if (is_stored) stored[store_fifo] <= store_position + 1'b1;
    if (fetch_valid && fetch_ready) fetch_position <= fetch_position + 1'b1;
    if (data_valid && data_ready) write_word <= write_word + 1'b1;
    if (reset) begin
      for (int i = 0; i < FIFOS; i++) stored[i] <= '0;
      fetch_position <= '0;
      write_word <= '0;
    end
  end

endmodule

`default_nettype wire
